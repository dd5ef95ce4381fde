"""Cold against warm: the same prompts sent twice to a real server, once salted so that nothing can be shared.

A `cache_salt` gives a prompt a hash chain of its own: no block of it is in the shards or in memory, so
its first token takes what it takes without a cache, in the same process, on the same machine.
"""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from kvtool.errors import KvtoolError
from kvtool.requests import Request

STARTUP = 300.0
"""Seconds that a server may take until it answers /health."""

TIMEOUT = httpx.Timeout(10.0, read=600.0)
"""Reading may take long: a cold prompt of thousands of tokens on a small machine."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer. first_token, total: seconds from sending to the first text, and to the end."""

    text: str
    first_token: float
    total: float
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Pair:
    """The same prompt, cold and warm."""

    request: str
    cold: Answer
    warm: Answer

    @property
    def identical(self) -> bool:
        """Whether both answers are the same text."""
        return self.cold.text == self.warm.text


@contextmanager
def server(arguments: Sequence[str], log: Path) -> Iterator[str]:
    """Run `kvtool serve ARGUMENTS` on a free port; yields its URL once it is ready, and stops it at the end.

    Its stderr goes to `log`. KvtoolError with its last lines if it does not come up.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "kvtool",
        "serve",
        *arguments,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink)
    try:
        url = f"http://127.0.0.1:{port}"
        _await_health(url, process, log)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_health(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + STARTUP
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    last = " / ".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:])
    raise KvtoolError(f"kvtool serve did not come up: {last}", f"its log is {log}")


def compare(url: str, model: str, requests: Sequence[Request], max_tokens: int) -> Iterator[Pair]:
    """Send each request cold, then warm, one at a time, greedily. A short prompt goes first, uncounted.

    Requests must hold messages. Answers end at `max_tokens` tokens or where the model ends them.
    """
    with httpx.Client(base_url=url, timeout=TIMEOUT) as client:
        ask(client, {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2})
        for number, request in enumerate(requests):
            body = {
                "model": model,
                "messages": request.messages,
                **({"tools": request.tools} if request.tools else {}),
                "max_tokens": max_tokens,
                "temperature": 0,
            }
            cold = ask(client, {**body, "cache_salt": f"cold-{number}"})
            yield Pair(request.id, cold, ask(client, body))


def ask(client: httpx.Client, body: dict[str, Any]) -> Answer:
    """One streamed chat completion. KvtoolError with the server's words if it refuses."""
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    usage: dict[str, Any] = {}
    pieces: list[str] = []
    started = time.perf_counter()
    first: float | None = None
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            response.read()
            raise KvtoolError(f"the server answered {response.status_code}: {response.text[:300]}")
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line.removeprefix("data: "))
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices", []):
                piece = _text(choice["delta"])
                if piece and first is None:
                    first = time.perf_counter() - started
                pieces.append(piece)
    total = time.perf_counter() - started
    return Answer(
        text="".join(pieces),
        first_token=total if first is None else first,
        total=total,
        prompt_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
    )


def _text(delta: dict[str, Any]) -> str:
    """All that a piece of an answer says: text, reasoning and tool calls."""
    said = [delta.get("reasoning_content") or "", delta.get("content") or ""]
    said += [json.dumps(call, sort_keys=True) for call in delta.get("tool_calls") or []]
    return "".join(said)
