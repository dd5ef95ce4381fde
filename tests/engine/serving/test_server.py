"""The server over real HTTP with OpenAI's own client: answers, usage, limits, errors, faults of clients."""

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtool.blocks import reusable_blocks
from kvtool.cli import main

Serving = Callable[..., AbstractContextManager[Any]]
SYSTEM = "You are terse. " * 6
LONG = {"role": "system", "content": SYSTEM}
WEB = httpx.Client(timeout=60)  # one for all: making one takes longer than most requests here
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def server(serving: Serving, tiny_model: Path) -> Iterator[Any]:
    with serving(model=str(tiny_model), block_size=8, device_blocks=160) as running:
        yield running


@pytest.fixture
def client(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def model(server: Any) -> str:
    return str(server.engine.model_id)


def ask(client: openai.OpenAI, model: str, text: str, **options: Any) -> Any:
    messages: Any = [LONG, {"role": "user", "content": text}]
    return client.chat.completions.create(model=model, messages=messages, **{**GREEDY, **options})


def test_cold_warm_and_streamed_answers_are_the_same_tokens(client: openai.OpenAI, model: str) -> None:
    cold = ask(client, model, "first question", extra_body={"cache_salt": "a", "ignore_eos": True})
    warm = ask(client, model, "first question", extra_body={"cache_salt": "a", "ignore_eos": True})
    usage = cold.usage
    assert usage.prompt_tokens_details.cached_tokens == 0 and usage.completion_tokens == 12
    assert usage.total_tokens == usage.prompt_tokens + 12
    expected = reusable_blocks(usage.prompt_tokens, 8) * 8
    assert warm.usage.prompt_tokens_details.cached_tokens == expected > 64
    assert warm.choices[0].message.content == cold.choices[0].message.content
    assert cold.choices[0].finish_reason == "length"
    stream = ask(client, model, "first question", stream=True, stream_options={"include_usage": True})
    pieces, finish, last = [], [], None
    for chunk in stream:
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            finish.append(choice.finish_reason)
        last = chunk
    assert "".join(pieces) == cold.choices[0].message.content
    assert finish[-1] == "length" and set(finish[:-1]) == {None}
    assert last is not None and last.usage is not None and last.usage.completion_tokens == 12


def test_a_cache_salt_shares_with_nobody_else(client: openai.OpenAI, model: str) -> None:
    for salt, cached in (("x", False), ("y", False), ("x", True)):
        usage = ask(client, model, "salted", extra_body={"cache_salt": salt}).usage
        assert (usage.prompt_tokens_details.cached_tokens > 0) is cached


def test_text_completions_take_text_ids_and_lists(client: openai.OpenAI, model: str, server: Any) -> None:
    prompt = "the quick brown fox jumps over"
    ids = [int(token) for token in server.engine.model.encoder.tokenizer.encode(prompt)]
    whole = client.completions.create(model=model, prompt=prompt, **GREEDY)
    by_ids = client.completions.create(model=model, prompt=ids, **GREEDY)
    assert whole.choices[0].text == by_ids.choices[0].text and whole.usage is not None
    assert whole.usage.prompt_tokens == len(ids)
    several = client.completions.create(model=model, prompt=[prompt, "another"], **GREEDY)
    assert [choice.index for choice in several.choices] == [0, 1]
    assert several.choices[0].text == whole.choices[0].text
    streamed = client.completions.create(model=model, prompt=prompt, stream=True, **GREEDY)
    assert "".join(c.choices[0].text for c in streamed) == whole.choices[0].text


def test_stop_strings_cut_across_tokens_and_are_not_sent(client: openai.OpenAI, model: str) -> None:
    said = client.completions.create(model=model, prompt="tell me more", **{**GREEDY, "max_tokens": 40})
    text = said.choices[0].text
    stop = text[7:10]  # one token a byte: three tokens
    cut = client.completions.create(
        model=model, prompt="tell me more", stop=stop, **{**GREEDY, "max_tokens": 40}
    )
    assert cut.choices[0].text == text[: text.index(stop)] and cut.choices[0].finish_reason == "stop"
    assert cut.usage is not None and cut.usage.completion_tokens < 40


def test_a_seed_gives_the_same_text_whether_the_prefix_hits_or_not(client: openai.OpenAI, model: str) -> None:
    def say(seed: int, salt: str) -> str:
        extra = {"cache_salt": salt, "top_k": 20, "min_p": 0.01, "ignore_eos": True}
        answer = ask(client, model, "dice", seed=seed, temperature=1.3, top_p=0.95, extra_body=extra)
        return str(answer.choices[0].message.content)

    assert say(5, "miss") == say(5, "miss") == say(5, "other")
    assert len({say(seed, "miss") for seed in range(4)}) > 1


def test_hardly_any_temperature_is_none(client: openai.OpenAI, model: str) -> None:
    """Logits over such a temperature would be infinite, and two infinite ones have no order."""
    extra = {"ignore_eos": True}
    greedy, cold = (ask(client, model, "dice", temperature=t, extra_body=extra) for t in (0, 5e-324))
    assert cold.choices[0].message.content == greedy.choices[0].message.content


def test_n_choices_share_the_prompt(client: openai.OpenAI, model: str, server: Any) -> None:
    before = server.counts["computed_tokens"]
    answer = ask(
        client,
        model,
        "n choices",
        n=3,
        seed=1,
        temperature=1.5,
        extra_body={"cache_salt": "n", "ignore_eos": True},
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1
    usage = answer.usage
    assert usage.completion_tokens == 36 and usage.prompt_tokens_details.cached_tokens == 0
    reused = reusable_blocks(usage.prompt_tokens, 8) * 8
    computed = server.counts["computed_tokens"] - before
    assert computed == usage.prompt_tokens + 2 * (usage.prompt_tokens - reused) + 3 * 11


def test_logprobs_name_the_chosen_token_first_when_greedy(client: openai.OpenAI, model: str) -> None:
    answer = ask(client, model, "odds", logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == 12
    for entry in content:
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob) and entry.logprob < 0
        odds = [top.logprob for top in entry.top_logprobs]
        assert odds == sorted(odds, reverse=True) and len(odds) == 3


def test_logit_bias_and_penalties_change_what_is_said(client: openai.OpenAI, model: str) -> None:
    plain = ask(client, model, "bias").choices[0].message.content
    forced = client.completions.create(model=model, prompt="bias", logit_bias={"65": 100}, **GREEDY)
    alphabet_letter = forced.choices[0].text
    assert len(set(alphabet_letter)) == 1 and len(alphabet_letter) == 12
    penalised = client.completions.create(
        model=model, prompt="bias", logit_bias={"65": 50}, frequency_penalty=2, presence_penalty=2, **GREEDY
    )
    assert penalised.choices[0].text != plain


def test_models(client: openai.OpenAI, model: str) -> None:
    assert [entry.id for entry in client.models.list().data] == [model]
    assert client.models.retrieve("tiny-llama").id == model
    with pytest.raises(openai.NotFoundError) as error:
        client.completions.create(model="gpt-9", prompt="hi")
    assert error.value.code == "model_not_found" and error.value.param == "model"


@pytest.mark.parametrize(
    ("body", "needle"),
    [
        (b"{", "JSON"),
        (b"[]", "dictionary"),
        (b'{"model": "tiny-llama"}', "messages"),
        (b'{"model": "tiny-llama", "messages": []}', "messages"),
        (b'{"model": "tiny-llama", "messages": [{"role": "wizard"}]}', "role"),
        (b'{"model": "tiny-llama", "messages": [{"role": "user"}], "temperature": 9}', "temperature"),
        (b'{"model": "tiny-llama", "messages": [{"role": "user"}], "tempature": 1}', "tempature"),
        (b'{"model": "tiny-llama", "messages": [{"role": "user"}], "max_tokens": 0}', "max_tokens"),
        (b'{"model": "tiny-llama", "messages": [{"role": "user"}], "n": 1000}', "n:"),
        (
            b'{"model": "tiny-llama", "messages": [{"role": "user"}], "logit_bias": {"99999": 1}}',
            "logit_bias",
        ),
        (
            b'{"model": "tiny-llama", "messages": [{"role": "user"}], '
            b'"response_format": {"type": "json_schema"}}',
            "json_schema",
        ),
        (b'{"model": "tiny-llama", "messages": [{"role": "user", "content": "\\ud800"}]}', "surrogate"),
        (b'{"model": "\\ud800", "messages": [{"role": "user"}]}', "surrogate"),
        *(
            (b'{"model": "tiny-llama", "messages": [{"role": "user"}], "%s": "\\ud800"}' % field, "surrogate")
            for field in (b"user", b"prompt_cache_key", b"cache_salt", b"stop", b"\\udfff")
        ),
        (
            b'{"model": "tiny-llama", "messages": [{"role": "user"}], "logit_bias": {"%s": 1}}'
            % (b"9" * 5000),
            "logit_bias",
        ),
        (
            b'{"model": "tiny-llama", "messages": [{"role": "assistant", "tool_calls": [{"function": 3}]}]}',
            "messages[0].tool_calls[0]",
        ),
    ],
)
def test_bad_bodies_are_400_in_openais_shape(server: Any, body: bytes, needle: str) -> None:
    headers = {"content-type": "application/json"}
    answer = WEB.post(f"{server.url}/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error" and needle in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert WEB.get(f"{server.url}/health").status_code == 200


NOT_JSON = [float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("prompt", [True, 1.5, [True], [1.0], ["a", 1], [1, "a"], [[True]], [[[1]]], [None], {}, [1 << 70]]),
        ("max_tokens", [True, "5", 2.0, -1, 0, [], *NOT_JSON]),
        ("temperature", [True, "1", [], 2.1, -0.1, *NOT_JSON]),
        ("top_p", [True, "1", 0, 1.1, *NOT_JSON]),
        ("top_k", [True, "1", 1.0, -2]),
        ("seed", [True, "1", 1.0, 1 << 63, -(1 << 63) - 1]),
        ("n", [True, "1", 1.0, 0, 17]),
        ("stream", [1, 0, "true", "no", 1.0]),
        ("ignore_eos", [1, "yes"]),
        ("logprobs", [True, 6, "1"]),
        ("priority", [True, "1", 1.0, 1001, None]),
        ("session_ttl", [True, "1", -1, *NOT_JSON]),
        ("frequency_penalty", [True, "1", 2.1, *NOT_JSON]),
        ("logit_bias", [{key: 1} for key in ("٣", "²", "-0", "07", "+1", " 1", "1_0", "1e1", "", "0" * 20)]),
        ("logit_bias", [{"1": value} for value in (True, "1", None, [], 101, *NOT_JSON)]),
        ("stream_options", [{"include_usage": 1}, {"include_usage": "true"}, True, []]),
        ("metadata", [{"a": value} for value in NOT_JSON]),
        ("user", [5, True, ["a"], {}]),
    ],
)
def test_a_value_of_another_type_is_refused_by_the_name_of_its_field(
    server: Any, field: str, values: list[Any]
) -> None:
    for value in values:
        body = json.dumps({"model": "tiny-llama", "prompt": "x", "max_tokens": 1, field: value})
        headers = {"content-type": "application/json"}
        answer = WEB.post(f"{server.url}/v1/completions", content=body, headers=headers)
        assert answer.status_code == 400, (value, answer.text)
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] == field or "which are not JSON" in error["message"], (value, error)


def test_what_openai_lets_be_null_is_its_default(server: Any) -> None:
    fields = ("n", "stream", "frequency_penalty", "presence_penalty", "logprobs", "echo", "stop", "seed")
    body = {"model": "tiny-llama", "prompt": "nothing", "temperature": 0, "max_tokens": 4, "ignore_eos": True}
    plain, null = (
        WEB.post(f"{server.url}/v1/completions", json={**body, **more}).json()
        for more in ({}, dict.fromkeys(fields))
    )
    assert plain["choices"] == null["choices"] and len(plain["choices"]) == 1


def test_bodies_nested_as_deep_as_json_can_be_are_answered(server: Any) -> None:
    headers = {"content-type": "application/json"}
    told = set()
    for depth in (100, 300, 500, 700, *range(900, 1000, 5)):
        deep = '{"a":' * depth + "1" + "}" * depth
        for place in (
            '"metadata": {"a": %s}',
            '"tools": [{"type": "function", "function": {"name": "f", "a": %s}}]',
        ):
            body = (
                '{"model": "tiny-llama", "max_tokens": 1, "messages": [{"role": "user"}], '
                + place % deep
                + "}"
            )
            answer = WEB.post(f"{server.url}/v1/chat/completions", content=body, headers=headers)
            assert answer.status_code in (200, 400), answer.text
            told.add(answer.status_code)
    assert told == {200, 400}


def test_a_mistake_of_ours_is_500_in_openais_shape(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.engine.model.encoder.tokenizer, "encode", lambda _: 1 // 0)
    answer = WEB.post(f"{server.url}/v1/completions", json={"model": "tiny-llama", "prompt": "x"})
    error = answer.json()["error"]
    assert (
        answer.status_code == 500 and error["type"] == "server_error" and "division" not in error["message"]
    )


@pytest.mark.parametrize("path", ["pin", "prefetch"])
@pytest.mark.parametrize(
    "body", [{}, {"prompt": "x", "messages": [{"role": "user"}]}, {"messages": []}, {"prompt": [True]}]
)
def test_what_is_pinned_is_one_prompt(server: Any, path: str, body: dict[str, Any]) -> None:
    answer = WEB.post(f"{server.url}/kv/{path}", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_that_is_not_sent_as_json_is_400(server: Any, kind: str) -> None:
    body = b'{"model": "tiny-llama", "messages": [{"role": "user", "content": "a"}]}'
    for path in ("/v1/chat/completions", "/v1/completions"):
        answer = WEB.post(f"{server.url}{path}", content=body, headers={"Content-Type": kind})
        assert answer.status_code == 400, answer.text
        assert "Content-Type is not application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "aa", "format": "wav"}},
        {"type": "text", "text": 5},
        {},
    ],
)
def test_parts_that_are_not_text_are_refused_and_nothing_is_computed(server: Any, part: Any) -> None:
    seen = {"role": "user", "content": ["What is this?", {"type": "text", "text": "Say."}, part]}
    before = server.counts["computed_tokens"]
    messages = [LONG, seen]
    for path, body in (
        ("/v1/chat/completions", {"model": "tiny-llama", "messages": messages}),
        ("/kv/pin", {"messages": messages}),
        ("/kv/prefetch", {"messages": messages}),
    ):
        answer = WEB.post(f"{server.url}{path}", json=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["message"].startswith("messages.1.content.2: not a text part")
    assert server.counts["computed_tokens"] == before
    del seen["content"][2]  # type: ignore[attr-defined]
    text = {"model": "tiny-llama", "messages": messages, "max_tokens": 1}
    assert WEB.post(f"{server.url}/v1/chat/completions", json=text).status_code == 200


def test_a_prompt_that_does_not_fit_says_how_long_it_may_be(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model=model, prompt="x" * 2000)
    assert error.value.code == "context_length_exceeded" and "1024" in error.value.message
    most = client.completions.create(model=model, prompt="x" * 1020, **{**GREEDY, "max_tokens": 100})
    assert most.usage is not None and most.usage.completion_tokens == 4
    assert most.choices[0].finish_reason == "length"


def test_wrong_paths_and_methods_are_errors_in_openais_shape(server: Any) -> None:
    for method, path, status in (
        ("GET", "/v2", 404),
        ("GET", "/v1/completions", 405),
        ("GET", "/../etc", 404),
        ("POST", "/v1/completions/", 404),
    ):
        answer = WEB.request(method, server.url + path)
        assert answer.status_code == status and answer.json()["error"]["message"]


def test_health_metrics_and_stats_agree(client: openai.OpenAI, model: str, server: Any) -> None:
    ask(client, model, "metrics")
    ask(client, model, "metrics")
    server.idle()
    assert WEB.get(f"{server.url}/health").json() == {"status": "ok"}
    lines = WEB.get(f"{server.url}/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    stats = WEB.get(f"{server.url}/kv/stats").json()
    assert float(values["kvtool_prompt_tokens_total"]) == stats["counts"]["prompt_tokens"] > 0
    assert float(values['kvtool_hit_tokens_total{tier="device"}']) == stats["counts"]["hit_tokens_device"] > 0
    assert float(values['kvtool_blocks_capacity{tier="device"}']) == 160
    assert float(values['kvtool_ttft_seconds_count{prefix="warm"}']) >= 1
    assert 0 < stats["hit_rate"]["tokens"] < 1


def test_every_token_after_the_first_has_its_gap_in_the_metrics(server: Any, model: str) -> None:
    """Also where several make one character, and come to the client together."""

    def gaps(text: str, **fields: Any) -> tuple[float, Any]:
        name = "kvtool_inter_token_seconds_count"
        before = metric(server, name)
        body = {"model": model, "prompt": text, "max_tokens": 30, "temperature": 0, "ignore_eos": True}
        answer = WEB.post(f"{server.url}/v1/completions", json={**body, **fields}).json()
        return metric(server, name) - before, answer["choices"][0]

    tried = 0
    for letter in "abcdefghijklmnopqrstuvwxyz":
        counted, choice = gaps(f"{letter} begins", logprobs=0)  # which send every token at once
        assert counted == 29
        parts = [token.startswith("bytes:") for token in choice["logprobs"]["tokens"]]
        if any(parts) and not parts[0]:
            tried += 1
            assert gaps(f"{letter} begins")[0] == 29
    assert tried > 1


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models"])
def test_head_is_answered_as_get_without_a_body(server: Any, path: str) -> None:
    """On a bare socket: a client would not show bytes that are none of an answer's."""
    got = WEB.get(server.url + path)
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port)) as line:
        line.sendall(f"HEAD {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        head, _, body = b"".join(iter(lambda: line.recv(4096), b"")).decode().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 ") and body == ""
    assert f"content-type: {got.headers['content-type']}" in head.splitlines()


def test_the_live_page_shows_what_the_server_has(client: openai.OpenAI, model: str, server: Any) -> None:
    answer = WEB.get(f"{server.url}/")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    ask(client, model, "page")
    stats = WEB.get(f"{server.url}/kv/stats").json()
    used = set(re.findall(r"\bnow\.(\w+)", answer.text)) | set(re.findall(r"\btier\.(\w+)", answer.text))
    known = set(stats) | set(stats["tiers"]["device"]) | set(stats["hit_rate"])
    assert used and used <= known, "the page reads fields that /kv/stats does not have"
    assert "http://" not in answer.text and "https://" not in answer.text


def test_a_client_that_leaves_frees_its_slots(server: Any, model: str) -> None:
    body = {
        "model": model,
        "prompt": "never ending",
        "max_tokens": 900,
        "temperature": 0,
        "ignore_eos": True,
    }
    for stream in (True, False):
        before = server.counts["generated_tokens"]
        with pytest.raises(httpx.ReadTimeout), httpx.Client(timeout=httpx.Timeout(10, read=0.3)) as client:
            if stream:
                with client.stream(
                    "POST", f"{server.url}/v1/completions", json={**body, "stream": True}
                ) as answer:
                    for number, _ in enumerate(answer.iter_lines()):
                        if number > 5:
                            raise httpx.ReadTimeout("leaving")
            else:
                client.post(f"{server.url}/v1/completions", json=body)
        server.idle()
        assert 0 < server.counts["generated_tokens"] - before < 900
    device = server.engine.scheduler.pool.device
    assert server.on_scheduler(lambda _: device.available()) == device.capacity


def test_kv_can_be_looked_at_evicted_pinned_and_reset(client: openai.OpenAI, model: str, server: Any) -> None:
    json_type = {"content-type": "application/json"}
    post = lambda path, body: WEB.post(f"{server.url}/kv/{path}", json=body, timeout=60)  # noqa: E731
    assert WEB.post(f"{server.url}/kv/reset").status_code == 415  # what a web page could send
    WEB.post(f"{server.url}/kv/reset", headers=json_type)
    assert WEB.get(f"{server.url}/kv/blocks").json() == {"total": 0, "offset": 0, "blocks": []}
    pinned = post("pin", {"messages": [LONG], "ttl": 600}).json()
    assert pinned["tokens"] == pinned["blocks"] * 8 > 64
    blocks = WEB.get(f"{server.url}/kv/blocks", params={"limit": 3}).json()
    assert blocks["total"] >= pinned["blocks"] and len(blocks["blocks"]) == 3
    assert [block["depth"] for block in blocks["blocks"]] == [0, 1, 2] and blocks["blocks"][0]["held"]
    assert blocks["blocks"][1]["parent"] == blocks["blocks"][0]["hash"]
    root = blocks["blocks"][0]["hash"]
    assert post("evict", {"hashes": [root]}).json()["dropped"] <= 1, "pinned blocks stay"
    assert ask(client, model, "pinned").usage.prompt_tokens_details.cached_tokens >= pinned["tokens"] - 8
    server.on_scheduler(lambda s: s.pins.clear())
    assert post("evict", {"hashes": [root]}).json()["dropped"] >= pinned["blocks"]
    assert ask(client, model, "pinned").usage.prompt_tokens_details.cached_tokens == 0
    assert post("evict", {"hashes": ["../../etc"]}).status_code == 400
    server.idle()


def test_hints_come_in_the_body_or_in_headers(client: openai.OpenAI, model: str, server: Any) -> None:
    seen: list[tuple[int, float | None]] = []
    submit = server.engine.runtime.submit

    def watched(generations: Any) -> None:
        seen.extend((one.priority, one.keep) for one in generations)
        submit(generations)

    server.engine.runtime.submit = watched
    try:
        headers = {"X-Priority": "-5", "X-Session-TTL": "250.5", "X-Session-Id": "hinted"}
        ask(client, model, "hints", extra_headers=headers)
        assert server.on_scheduler(lambda s: len(s.kept)) == 1
        ask(client, model, "hints", extra_headers=headers, extra_body={"priority": 3, "session_ttl": 0})
        assert server.on_scheduler(lambda s: len(s.kept)) == 0
    finally:
        del server.engine.runtime.submit
    assert seen == [(-5, 250.5), (3, 0.0)]
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, model, "hints", extra_headers={"X-Session-TTL": "forever"})
    assert error.value.param == "x-session-ttl"


FIELDS = st.sampled_from(
    ["model", "messages", "prompt", "n", "stop", "stream", "tools", "max_tokens", "seed", "top_p", "logprobs",
     "logit_bias", "temperature", "stream_options", "response_format", "tool_choice", "x", "user", "metadata",
     "prompt_cache_key", "cache_salt", "session_ttl", "priority"]
)  # fmt: skip
ANY = st.characters(exclude_categories=())  # surrogates too
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(ANY, max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(FIELDS | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"])},
        optional={"content": JSON, "tool_calls": JSON, "name": JSON, "tool_call_id": JSON},
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=st.dictionaries(FIELDS, JSON, max_size=5), messages=MESSAGES, path=st.sampled_from(["chat/", ""]))
def test_hostile_bodies_never_break_the_server(
    server: Any, body: dict[str, Any], messages: list[Any], path: str
) -> None:
    body = {"prompt": "x", **body, "model": "tiny-llama", "max_tokens": 2}
    if path:
        body = {"messages": messages, **body}
        body.pop("prompt")
    headers = {"content-type": "application/json"}
    answer = WEB.post(f"{server.url}/v1/{path}completions", content=json.dumps(body), headers=headers)
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert WEB.get(f"{server.url}/health").status_code == 200


def test_a_normalizer_repairs_live_requests(serving: Serving, tiny_model: Path, tmp_path: Path) -> None:
    rows = [
        {
            "model": "m",
            "timestamp": 1700000000 + 60 * number,
            "messages": [
                {"role": "system", "content": f"Current time: 2026-01-05 10:{number:02d}:00\n{SYSTEM * 6}"},
                {"role": "user", "content": f"question {number}"},
            ],
        }
        for number in range(12)
    ]
    log, rules = tmp_path / "log.jsonl", tmp_path / "normalizer.json"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["normalize", str(log), "-o", str(tmp_path / "out.jsonl"), "--rules-out", str(rules)]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output

    def cached(running: Any) -> list[int]:
        found = []
        for row in rows[:3]:
            body = {"model": "tiny-llama", "messages": row["messages"], "max_tokens": 1, "temperature": 0}
            answer = WEB.post(f"{running.url}/v1/chat/completions", json=body).json()
            found.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        return found

    with serving(model=str(tiny_model), block_size=8, device_blocks=120) as running:
        assert max(cached(running)) < 64
    with serving(model=str(tiny_model), block_size=8, device_blocks=120, normalizer=rules) as running:
        assert cached(running)[1] >= len(SYSTEM * 6) // 8 * 8


def metric(running: Any, name: str) -> float:
    """A value of /metrics."""
    lines = WEB.get(f"{running.url}/metrics").text.splitlines()
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name} "))


def test_a_full_queue_is_429_with_retry_after(serving: Serving, tiny_model: Path) -> None:
    with serving(
        model=str(tiny_model), block_size=8, device_blocks=64, max_running=1, max_queue=0
    ) as running:
        body = {"model": running.engine.model_id, "prompt": "busy", "ignore_eos": True, "max_tokens": 40}
        url = f"{running.url}/v1/completions"
        gate = threading.Event()
        running.engine.runtime.call(lambda _: gate.wait(30))  # nothing is computed until it opens
        try:
            with ThreadPoolExecutor(1) as pool:
                first = pool.submit(WEB.post, url, json=body, timeout=60)
                while not running.engine.runtime.inside:
                    threading.Event().wait(0.01)
                refused = WEB.post(url, json=body)
                assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
                assert refused.json()["error"]["type"] == "rate_limit_error"
                assert metric(running, "kvtool_refused_requests_total") == 1
                gate.set()
                assert first.result().json()["usage"]["completion_tokens"] == 40
        finally:
            gate.set()
        with WEB.stream("POST", url, json={**body, "max_tokens": 400, "stream": True}) as stream:
            next(stream.iter_lines())  # and then the client leaves
        running.idle()
        assert metric(running, 'kvtool_ended_requests_total{finish="cancelled"}') == 1
        assert metric(running, 'kvtool_ended_requests_total{finish="length"}') == 1
        refused = WEB.post(url, json={**body, "n": 2})
        assert refused.status_code == 400, "there will never be room: nobody should try again"
        assert "2 answers, this server gives 1" in refused.json()["error"]["message"]
        running.idle()
        answer = WEB.post(f"{running.url}/v1/completions", json={**body, "max_tokens": 1})
        assert answer.status_code == 200


def test_a_body_over_the_limit_is_413(serving: Serving, tiny_model: Path) -> None:
    with serving(model=str(tiny_model), block_size=8, device_blocks=16, body_limit=1000) as running:
        url = f"{running.url}/v1/completions"
        big = json.dumps({"model": "tiny-llama", "prompt": "x" * 2000}).encode()
        assert WEB.post(url, content=big).status_code == 413

        def pieces() -> Iterator[bytes]:
            for start in range(0, len(big), 100):
                yield big[start : start + 100]

        answer = WEB.post(url, content=pieces(), headers={"content-type": "application/json"})
        assert answer.status_code == 413 and answer.json()["error"]["code"] == "request_too_large"


def test_bodies_of_all_requests_together_are_bounded(serving: Serving, tiny_model: Path) -> None:
    with serving(model=str(tiny_model), block_size=8, device_blocks=16, body_limit=1000) as running:
        url, host = f"{running.url}/v1/completions", running.url.removeprefix("http://").split(":")
        body = json.dumps({"model": "tiny-llama", "prompt": "x", "max_tokens": 1, "user": "x" * 900}).encode()
        assert WEB.post(url, content=body, headers={"content-type": "application/json"}).status_code == 200
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
        with ExitStack() as uploads:
            for _ in range(16):
                upload = uploads.enter_context(socket.create_connection((host[0], int(host[1])), timeout=60))
                upload.sendall(head + b"x" * 970)
            answers = [
                WEB.post(url, content=body, headers={"content-type": "application/json"}) for _ in range(20)
            ]
            refused = answers[-1]  # by then all of them have come
            assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["code"] == "rate_limit_exceeded"
            assert WEB.get(f"{running.url}/health").status_code == 200
        while WEB.post(url, content=body, headers={"content-type": "application/json"}).status_code != 200:
            threading.Event().wait(0.01)  # until the server has seen that they left


def test_many_clients_on_a_small_pool_all_finish_or_are_refused_and_answers_are_right(
    serving: Serving, tiny_model: Path
) -> None:
    prompts = [f"{'shared words ' * 4}{'abc'[number % 3] * 9} {number % 5}" for number in range(60)]

    def body(number: int) -> dict[str, Any]:
        return {
            "model": "tiny-llama",
            "prompt": prompts[number],
            "temperature": 0,
            "max_tokens": 10 + number % 7,
            "ignore_eos": True,
            "stream": number % 2 == 0,
        }

    def text(answer: httpx.Response, streamed: bool) -> str:
        if not streamed:
            return str(answer.json()["choices"][0]["text"])
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        return "".join(json.loads(line)["choices"][0]["text"] for line in lines)

    expected: dict[int, str] = {}
    with serving(model=str(tiny_model), block_size=8, device_blocks=200) as calm:
        for number in range(60):
            salted = {**body(number), "stream": False, "cache_salt": str(number)}
            expected[number] = text(WEB.post(f"{calm.url}/v1/completions", json=salted), False)

    with serving(
        model=str(tiny_model),
        block_size=8,
        device_blocks=30,
        host_memory=20 * 4096,
        max_queue=20,
        max_running=6,
    ) as crowded:
        leavers = threading.Semaphore(5)

        def send(number: int) -> tuple[int, str | None]:
            if number % 10 == 9 and leavers.acquire(blocking=False):
                try:
                    WEB.post(f"{crowded.url}/v1/completions", json=body(number), timeout=0.05)
                except httpx.TimeoutException:
                    return number, None
            answer = WEB.post(f"{crowded.url}/v1/completions", json=body(number), timeout=120)
            assert answer.status_code in (200, 429)
            return number, text(answer, body(number)["stream"]) if answer.status_code == 200 else None

        with ThreadPoolExecutor(24) as pool:
            answers = dict(pool.map(send, range(60)))
        crowded.idle()
        counts = crowded.counts
        device = crowded.engine.scheduler.pool.device
        assert crowded.on_scheduler(lambda _: device.available()) == 30
    finished = {number: said for number, said in answers.items() if said is not None}
    assert len(finished) >= 20
    assert finished == {number: expected[number] for number in finished}
    assert counts["hit_tokens_device"] > 0


def test_keys_separate_tenants_and_guard_the_cache(
    serving: Serving, tiny_model: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(
        "\ufeff# keys\n  # and none of these\nred-key red\nblue-key blue\nplain-key\nroot-key admin\n"
    )
    with serving(model=str(tiny_model), block_size=8, device_blocks=64, api_key_file=keys) as running:

        def cached(key: str) -> int:
            with openai.OpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0) as client:
                return int(ask(client, "tiny-llama", "secret").usage.prompt_tokens_details.cached_tokens)

        assert cached("red-key") == 0
        assert cached("blue-key") == 0, "a tenant must not learn what another one asked"
        assert cached("red-key") > 0 and cached("plain-key") == 0
        for scheme in ("bearer", "BEARER"):
            headers = {"authorization": f"{scheme} red-key"}
            assert WEB.get(f"{running.url}/v1/models", headers=headers).status_code == 200
        for key in ("wrong", "red-ke", "red-key2", "#"):
            with pytest.raises(openai.AuthenticationError):
                cached(key)
        for key, status in (("red-key", 403), ("root-key", 200)):
            headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
            assert WEB.post(f"{running.url}/kv/reset", headers=headers).status_code == status
            assert WEB.get(f"{running.url}/kv/blocks", headers=headers).status_code == status
            assert WEB.get(f"{running.url}/kv/stats", headers=headers).status_code == status
        assert WEB.get(f"{running.url}/v1/models").status_code == 401
        for path in ("/v1/completions", "/v1/chat/completions", "/kv/pin", "/v1/nothing"):
            refused = WEB.post(f"{running.url}{path}", content=b"{" * 20_000_000)
            assert refused.status_code == 401, "nobody reads what comes without a key"
            assert refused.headers["www-authenticate"] == "Bearer"
        assert WEB.get(f"{running.url}/kv/stats").status_code == 401
        assert WEB.get(f"{running.url}/health").status_code == 200
