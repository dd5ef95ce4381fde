"""Large texts in a thread of their own: small ones pass them, but not those of the same session."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvtool.engine.serving import lanes

Serving = Callable[..., AbstractContextManager[Any]]
WEB = httpx.Client(timeout=60)
LARGE = {"metadata": {"padding": "x" * (lanes.LARGE + 1)}}


@pytest.fixture(scope="module")
def server(serving: Serving, tiny_model: Path) -> Iterator[Any]:
    with serving(model=str(tiny_model), block_size=8, device_blocks=160) as running:
        yield running


def ask(server: Any, prompt: Any, **fields: Any) -> httpx.Response:
    body = {"model": "tiny-llama", "prompt": prompt, "temperature": 0, "max_tokens": 4, "ignore_eos": True}
    return WEB.post(f"{server.url}/v1/completions", json={**body, **fields})


@pytest.fixture
def gate(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, list[str]]]:
    """(opens the way for the text "slow", texts in the order in which their tokenizing began)."""
    opened, begun = threading.Event(), []
    tokenizer = server.engine.model.encoder.tokenizer
    encode = tokenizer.encode

    def gated(text: str) -> Any:
        begun.append(text)
        if text == "slow":
            assert opened.wait(30)
        return encode(text)

    monkeypatch.setattr(tokenizer, "encode", gated)
    yield opened, begun
    opened.set()


def test_small_texts_pass_a_large_one_but_for_those_of_its_session(
    server: Any, gate: tuple[threading.Event, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, begun = gate
    submitted: list[int] = []
    submit = server.engine.runtime.submit

    def watched(generations: Any) -> None:
        submitted.append(len(generations[0].prompt))
        submit(generations)

    monkeypatch.setattr(server.engine.runtime, "submit", watched)
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(ask, server, "slow", user="one", **LARGE)
        while begun != ["slow"]:
            threading.Event().wait(0.01)
        behind: Future[httpx.Response] = pool.submit(ask, server, "behind", user="one")
        for text in ("other 1", "other 22"):
            assert ask(server, text, user="two").status_code == 200
        assert ask(server, "nobody's 3").status_code == 200
        assert not slow.done() and not behind.done() and "behind" not in begun
        opened.set()
        assert slow.result().status_code == behind.result().status_code == 200
        assert ask(server, "4", user="one").status_code == 200
    assert begun == ["slow", "other 1", "other 22", "nobody's 3", "behind", "4"]
    assert submitted == [7, 8, 10, 4, 6, 1]  # one token a byte


def test_the_lane_changes_no_answer(server: Any) -> None:
    small, large = (ask(server, "the same words", **more) for more in ({}, LARGE))
    assert small.json()["choices"] == large.json()["choices"]
    assert small.json()["usage"]["prompt_tokens"] == large.json()["usage"]["prompt_tokens"] == 14


def test_a_text_that_cannot_fit_is_refused_untokenized(
    server: Any, gate: tuple[threading.Event, list[str]]
) -> None:
    text = "never fits " * 100_000
    for path, body in (
        ("/v1/completions", {"model": "tiny-llama", "prompt": text}),
        ("/v1/chat/completions", {"model": "tiny-llama", "messages": [{"role": "user", "content": text}]}),
        ("/kv/pin", {"prompt": text}),
        ("/kv/prefetch", {"prompt": text}),
        ("/v1/completions", {"model": "tiny-llama", "prompt": [0] * 1024}),
    ):
        answer = WEB.post(f"{server.url}{path}", json=body)
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["code"] == "context_length_exceeded", answer.text
        assert "maximum context length is 1024 tokens" in error["message"]
        assert error["param"] == ("messages" if "chat" in path else "prompt")
    assert gate[1] == []
