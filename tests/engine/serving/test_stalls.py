"""Clients that stall: half a head, half an upload, an answer that nobody reads. None holds anything."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvtool.engine.serving import connection

Serving = Callable[..., AbstractContextManager[Any]]
BODY = json.dumps({"model": "tiny-llama", "prompt": "hello", "max_tokens": 2, "ignore_eos": True}).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
HEAD += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def server(serving: Serving, tiny_model: Path) -> Iterator[Any]:
    with serving(model=str(tiny_model), block_size=8, device_blocks=160) as running:
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ARRIVAL", 0.3)


def connected(server: Any) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def rest(sent: socket.socket) -> bytes:
    """All that comes until the server closes."""
    received = b""
    while piece := sent.recv(65536):
        received += piece
    return received


def answered(sent: socket.socket) -> None:
    """Read one answer whole."""
    answer = HTTPResponse(sent)
    answer.begin()
    assert answer.status == 200 and json.loads(answer.read())["usage"]["completion_tokens"] == 2


def refusal(answer: bytes) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ") and b"connection: close" in head
    error: dict[str, Any] = json.loads(body)["error"]
    return error


@pytest.mark.parametrize(
    "part", [b"POST /v1/comp", HEAD % len(BODY), HEAD % len(BODY) + BODY[:-1], HEAD % (1 << 40) + BODY]
)
def test_a_request_that_does_not_arrive_is_408(server: Any, impatient: None, part: bytes) -> None:
    with connected(server) as client:
        client.sendall(part)
        error = refusal(rest(client))
    assert error["type"] == "invalid_request_error" and "too long to arrive" in error["message"]


@pytest.mark.parametrize("sent", [b"HELLO\r\n\r\n", HEAD.replace(b"%d", b"-5"), HEAD % 5 + b"\0" * 5])
def test_what_is_no_request_is_400_in_openais_shape(server: Any, sent: bytes) -> None:
    with connected(server) as client:
        client.sendall(sent)
        answer = HTTPResponse(client)
        answer.begin()
        error = json.loads(answer.read())["error"]
    assert answer.status == 400 and error["type"] == "invalid_request_error"


def test_who_says_nothing_is_hung_up_on(server: Any, impatient: None) -> None:
    with connected(server) as client:
        assert rest(client) == b""


def test_a_trickle_does_not_put_the_deadline_off(server: Any, impatient: None) -> None:
    with connected(server) as client:
        client.settimeout(0.05)
        client.sendall(HEAD % len(BODY))
        answer = b""
        for byte in BODY:
            client.sendall(bytes([byte]))
            try:
                answer = client.recv(65536)
                break
            except TimeoutError:
                continue
        assert refusal(answer)


def test_bytes_that_come_fast_enough_put_it_off(
    server: Any, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PACE", 1)
    with connected(server) as client:
        client.sendall(HEAD % len(BODY) + BODY[:-1])
        client.settimeout(0.6)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.settimeout(60)
        client.sendall(BODY[-1:])
        answered(client)


def test_a_request_that_is_here_may_take_as_long_as_its_answer(server: Any, impatient: None) -> None:
    gate = threading.Event()
    server.engine.runtime.call(lambda _: gate.wait(30))
    with connected(server) as client:
        client.sendall(HEAD % len(BODY) + BODY)
        client.settimeout(0.6)
        with pytest.raises(TimeoutError):
            client.recv(1)
        gate.set()
        client.settimeout(60)
        answered(client)


def test_half_a_request_behind_a_whole_one_is_waited_for_no_longer(server: Any, impatient: None) -> None:
    with connected(server) as client:
        client.sendall(HEAD % len(BODY) + BODY + HEAD % len(BODY) + BODY[:5])
        answers = rest(client)
    first, _, second = answers.partition(b"HTTP/1.1 408 ")
    assert first.startswith(b"HTTP/1.1 200 ") and second


def test_an_idle_connection_is_kept_and_half_a_head_on_it_is_not(server: Any, impatient: None) -> None:
    with connected(server) as client:
        for _ in range(2):
            client.sendall(HEAD % len(BODY) + BODY)
            answered(client)
            client.settimeout(0.6)
            with pytest.raises(TimeoutError):
                client.recv(1)
            client.settimeout(60)
        client.sendall(b"GET /hea")
        assert refusal(rest(client))


def test_an_answer_that_nobody_reads_is_dropped(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "UNREAD", 0.2)
    made: list[Any] = []
    begin = connection.Connection.connection_made

    def small(self: Any, transport: Any) -> None:
        begin(self, transport)
        made.append(self)
        transport.set_write_buffer_limits(high=0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)

    monkeypatch.setattr(connection.Connection, "connection_made", small)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        host, port = server.url.removeprefix("http://").split(":")
        client.connect((host, int(port)))
        body = json.dumps(
            {"model": "tiny-llama", "prompt": "go", "max_tokens": 900, "ignore_eos": True, "stream": True}
        )
        client.sendall(HEAD % len(body) + body.encode())
        for _ in range(600):
            if made and made[0].transport.is_closing():
                break
            threading.Event().wait(0.05)
        assert made[0].transport.is_closing()
    server.idle()
    assert httpx.get(f"{server.url}/health").status_code == 200
