"""Cold against warm: the same prompts sent twice to a real server, once salted so that nothing can be shared.

A `cache_salt` gives a prompt a hash chain of its own: no block of it is in the shards or in memory, so
its first token takes what it takes without a cache, in the same process, on the same machine.
"""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from kvtool.engine.replay import Sent, Target, replay
from kvtool.errors import KvtoolError
from kvtool.requests import Request, Source

STARTUP = 600.0
"""Seconds that a server may take until it answers /health."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The same prompt, cold and warm."""

    cold: Sent
    warm: Sent

    @property
    def identical(self) -> bool:
        """Whether both answers are the same text."""
        return self.cold.text == self.warm.text


@contextmanager
def server(arguments: Sequence[str], log: Path) -> Iterator[str]:
    """Run `kvtool serve ARGUMENTS` on a free port; yields its URL once it is ready, and stops it at the end.

    Its stderr goes to `log`. KvtoolError with its last lines if it does not come up. SIGTERM ends this
    process in order, so that the server does not outlive it.
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
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
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
        signal.signal(signal.SIGTERM, before)


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

    Answers end at `max_tokens` tokens or where the model ends them.
    """
    plain = Target(url, model, speed=None, max_tokens=max_tokens)
    _send(Request("hello", Source("", 0), messages=[{"role": "user", "content": "Hello"}]), plain)
    for number, request in enumerate(requests):
        cold = _send(request, replace(plain, salt=f"cold-{number}"))
        yield Pair(cold, _send(request, plain))


def _send(request: Request, target: Target) -> Sent:
    (sent,) = replay([request], target, lambda _: None)
    if sent.error is not None:
        raise KvtoolError(f"{sent.id}: the server answered {sent.error}")
    return sent
