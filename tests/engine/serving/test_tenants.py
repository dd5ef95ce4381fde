"""Tenants share system prompts and tools that the operator made public; of all else they learn nothing."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from kvtool.cli import main

Serving = Callable[..., AbstractContextManager[Any]]
WEB = httpx.Client(timeout=60)
SIZE = 16
SYSTEM = "You answer questions about trains, planes and ships. " * 8  # as in branching_log
PUBLIC = (1 + len(f"system\n{SYSTEM}")) // SIZE * SIZE
"""Tokens of the system prompt's full blocks: one a byte, and one for the mark before it."""


@pytest.fixture(scope="module")
def shards(tiny_model: Path, branching_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("warm") / "shards"
    arguments = ["--logs", branching_log, "--model", tiny_model, "--block-size", SIZE, "--out", folder]
    result = CliRunner().invoke(main, ["prewarm", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(scope="module")
def running(
    serving: Serving, tiny_model: Path, shards: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("red-key red\nblue-key blue\nplain-key\nroot-key admin\n")
    options = {"model": str(tiny_model), "shards": shards, "device_blocks": 200}
    with serving(**options, api_key_file=keys) as made:
        made.engine.scheduler.rates.worth_loading = len  # this model computes faster than it reads
        yield made


def ask(running: Any, key: str, messages: list[dict[str, str]], **fields: Any) -> tuple[str, int]:
    """(answer, cached tokens) as one key sees them."""
    answer = WEB.post(
        f"{running.url}/v1/chat/completions",
        headers={"authorization": f"Bearer {key}"},
        json={
            "model": running.engine.model_id,
            "messages": messages,
            "temperature": 0,
            "max_tokens": 8,
            "ignore_eos": True,
            **fields,
        },
    )
    assert answer.status_code == 200, answer.text
    document = answer.json()
    cached = document["usage"]["prompt_tokens_details"]["cached_tokens"]
    return document["choices"][0]["message"]["content"], cached


def chat(question: str, system: str = SYSTEM) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


def test_every_tenant_gets_the_public_system_prompt_and_its_own_question_alone(running: Any) -> None:
    secret = "Where does the gold train go at night, by which line, and who guards it?"
    alone, salted = ask(running, "red-key", chat(secret), cache_salt="apart")
    assert salted == 0, "a salt shares with nobody"
    first, cached = ask(running, "red-key", chat(secret))
    assert cached == PUBLIC and first == alone
    again, more = ask(running, "red-key", chat(secret))
    assert more > cached and again == alone
    for key in ("blue-key", "plain-key"):
        probe, seen = ask(running, key, chat(secret))
        assert seen == PUBLIC and probe == alone, "as many as if red had never asked"
    running.idle()


def test_public_blocks_are_there_once_for_all(running: Any) -> None:
    WEB.post(f"{running.url}/kv/reset", json={}, headers={"authorization": "Bearer root-key"})
    before = running.counts["hit_tokens_shards"]
    for key in ("red-key", "blue-key"):
        ask(running, key, chat("Once?"))
    pool = running.engine.scheduler.pool
    used = running.on_scheduler(lambda _: int((pool.device.state.owner >= 0).sum()))
    assert running.counts["hit_tokens_shards"] - before == PUBLIC, "the second one finds them on the device"
    assert used < 2 * PUBLIC // SIZE
    running.idle()


def test_what_the_log_holds_of_its_users_is_not_public(running: Any) -> None:
    """The shards have the log's first questions too; a tenant that asks one gets the system prompt only."""
    question = "trains run on rails and " * 5
    assert ask(running, "plain-key", chat(question))[1] > PUBLIC + 64, "those without a tenant share all"
    assert ask(running, "blue-key", chat(question))[1] == PUBLIC


def test_a_system_prompt_of_the_tenants_own_is_not_shared(running: Any) -> None:
    own = "Reds only. " * 40
    assert ask(running, "red-key", chat("Hi", own))[1] == 0
    assert ask(running, "red-key", chat("Hi", own))[1] > 0
    assert ask(running, "blue-key", chat("Hi", own))[1] == 0
    later = [*chat("Hi"), {"role": "system", "content": own}, {"role": "user", "content": "And now?"}]
    assert ask(running, "red-key", later)[1] >= PUBLIC and ask(running, "blue-key", later)[1] == PUBLIC


def test_an_admin_can_make_a_prefix_public(running: Any) -> None:
    system = "A house style that the operator pins for everybody. " * 6
    headers = {"authorization": "Bearer root-key"}
    assert ask(running, "red-key", chat("Hi", system))[1] == 0
    body = {"messages": chat("", system)[:1], "ttl": 60, "public": True}
    pinned = WEB.post(f"{running.url}/kv/pin", json=body, headers=headers).json()
    assert pinned["blocks"] > 10
    for key in ("red-key", "blue-key"):
        cached = ask(running, key, chat("Hello there", system))[1]
        assert pinned["tokens"] - SIZE <= cached <= pinned["tokens"]
    denied = WEB.post(f"{running.url}/kv/pin", json=body, headers={"authorization": "Bearer red-key"})
    assert denied.status_code == 403
    running.on_scheduler(lambda s: s.pins.clear())
    running.idle()


def test_private_blocks_below_public_ones_survive_a_restart(
    serving: Serving, tiny_model: Path, shards: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("red-key red\nblue-key blue\n")
    options = {
        "model": str(tiny_model),
        "shards": shards,
        "device_blocks": 120,
        "disk": tmp_path / "disk",
        "disk_memory": 1 << 20,
        "api_key_file": keys,
    }
    question = "What did I tell you before, at length, so that it fills some blocks of its own?"
    with serving(**options) as first:
        plain, _ = ask(first, "red-key", chat(question))
    with serving(**options) as second:
        second.engine.scheduler.rates.worth_loading = len
        assert ask(second, "blue-key", chat(question))[1] == PUBLIC
        again, cached = ask(second, "red-key", chat(question))
        assert again == plain and cached >= PUBLIC + 64
        assert second.counts["hit_tokens_disk"] >= 64 and second.counts["bad_blocks"] == 0
        second.idle()


def test_a_tenant_that_sends_much_leaves_others_a_place_and_their_turn(
    serving: Serving, tiny_model: Path, tmp_path: Path
) -> None:
    """Of eight places red gets half, blue half of those that are left. A salt for each of its requests does
    not make red more tenants, so blue is served beside it and not behind it."""
    keys = tmp_path / "keys"
    keys.write_text("red-key red\nblue-key blue\nroot-key admin\n")
    options = {"model": str(tiny_model), "device_blocks": 64, "max_running": 2, "max_queue": 6}
    ended: list[str] = []
    with serving(**options, api_key_file=keys) as running, ThreadPoolExecutor(16) as pool:
        inside = running.engine.runtime

        def send(key: str, number: int, choices: int = 1) -> int:
            answer = WEB.post(
                f"{running.url}/v1/completions",
                headers={"authorization": f"Bearer {key}-key"},
                json={
                    "model": running.engine.model_id,
                    "prompt": f"{key} {number}",
                    "max_tokens": 60 if key == "red" else 1,
                    "n": choices,
                    "ignore_eos": True,
                    "cache_salt": f"{number}",
                },
            )
            ended.append(key)
            return answer.status_code

        def start(key: str, number: int) -> Future[int]:
            before = inside.inside
            future = pool.submit(send, key, number)
            while inside.inside == before and not future.done():
                threading.Event().wait(0.01)
            return future

        gate = threading.Event()
        inside.call(lambda _: gate.wait(30))  # nothing is computed until it opens
        try:
            sent = {key: [start(key, number) for number in range(6)] for key in ("red", "blue")}
            assert [future.done() for future in sent["red"]] == [False] * 4 + [True] * 2
            assert [future.done() for future in sent["blue"]] == [False] * 2 + [True] * 4
            del ended[:]
        finally:
            gate.set()
        for key, most in (("red", 4), ("blue", 2)):
            assert [future.result(30) for future in sent[key]] == [200] * most + [429] * (6 - most)
        assert ended[-1] == "red", "blue did not wait for all that red had sent before"
        assert send("red", 7, choices=5) == 400, "there will never be room for so many"
        assert send("red", 8, choices=4) == 200
        running.idle()
    keys.write_text("red-key red\nroot-key admin\n")
    with serving(**options, api_key_file=keys) as running:
        assert send("red", 9, choices=8) == 200, "the only tenant has all places"
        running.idle()
