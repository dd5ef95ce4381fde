"""Large texts in a thread of their own: small ones pass them, but not those of the same session."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvtool.engine.serving import lanes
from kvtool.engine.serving.api import ApiError

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


ENDLESS = """
import sys, threading
from kvtool.cli import main
from kvtool.tokens import FastTokenizer
encode = FastTokenizer.encode

def endless(self, text):
    if text == "endless":
        print("begun", flush=True)
        threading.Event().wait()
    return encode(self, text)

FastTokenizer.encode = endless
main(sys.argv[1:])
"""
"""kvtool with a text that is never tokenized: a tokenizer does not look at signals either."""


def test_a_tokenizer_holds_up_no_end(tiny_model: Path) -> None:
    """Who waits for it is answered 503, and the process ends by itself."""
    options = ["serve", "--model", tiny_model, "--port", "0", "--block-size", "8", "--drain", "0.2"]
    command = [sys.executable, "-c", ENDLESS, *map(str, options), "--device-blocks", "160"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        url = process.stdout.readline().split()[-1]
        process.stdout.readline()
        with ThreadPoolExecutor(1) as pool:
            body = {"model": str(tiny_model), "prompt": "endless", "max_tokens": 4}
            answer = pool.submit(WEB.post, f"{url}/v1/completions", json=body)
            assert process.stdout.readline() == "begun\n"
            process.send_signal(signal.SIGTERM)
            assert answer.result().status_code == 503
            assert answer.result().json()["error"]["message"] == "The server is shutting down."
        assert process.wait(60) == 0
        assert "a text that is still being tokenized is given up" in process.stderr.read()


def test_the_end_is_told_to_all_who_wait_and_begins_nothing() -> None:
    begun, opened = threading.Event(), threading.Event()
    done: list[str] = []

    def slow() -> None:
        begun.set()
        assert opened.wait(30)
        done.append("slow")

    async def session() -> None:
        made = lanes.Lanes()
        assert not made.busy
        asked = [
            asyncio.create_task(made.run(1, None, work)) for work in (slow, lambda: done.append("behind"))
        ]
        left = asyncio.create_task(made.run(1, None, lambda: done.append("left")))
        await asyncio.to_thread(begun.wait, 30)
        left.cancel()  # a client that has gone is no request to answer
        with pytest.raises(asyncio.CancelledError):
            await left
        made.end()
        for one in (*asked, asyncio.create_task(made.run(1, None, lambda: done.append("late")))):
            with pytest.raises(ApiError) as error:
                await one
            assert error.value.status == 503
        assert made.busy
        opened.set()
        while made.busy:
            await asyncio.sleep(0.01)

    asyncio.run(session())
    assert done == ["slow"]
