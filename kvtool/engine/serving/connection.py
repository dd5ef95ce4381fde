"""HTTP connections with deadlines, for sending a request and for reading its answer.

uvicorn has none once a first byte is here: half a head, an upload that stalls or trickles and an answer that
nobody reads would each be waited for until the client goes, and hold up the server's end.
"""

import asyncio
import json
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

ARRIVAL, PACE = 30.0, 64 << 10
"""Seconds that a request's head and body may take to arrive, and bytes that earn a second more."""

UNREAD = 60.0
"""Seconds for which an answer may wait until its reader makes room for more."""

SHUTTING_DOWN = "The server is shutting down."


class Connection(H11Protocol):  # type: ignore[misc]
    """uvicorn's connection over h11, with deadlines."""

    _arriving: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _since = 0.0
    _received = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        """The first request has begun: who connects and says nothing holds a connection, too."""
        super().connection_made(transport)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        """A request that is here whole has no deadline, however long its answer takes."""
        super().data_received(data)
        self._received += len(data)
        if not self.receiving:
            self._disarm()
        elif self._arriving is None:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """No timer outlives the connection."""
        self._disarm()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read as fast as we answer."""
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def on_response_complete(self) -> None:
        """The next request may be here in part, sent behind the one that was answered."""
        super().on_response_complete()
        if not self.cycle.response_complete and self.receiving and self._arriving is None:
            self._await_request()

    @property
    def receiving(self) -> bool:
        """Whether the server waits for a request, or for the rest of one."""
        cycle = self.cycle
        return cycle is None or bool(cycle.response_complete or cycle.more_body)

    def refuse_rest(self, status: HTTPStatus, message: str) -> None:
        """Say why the rest of the request is not waited for, and close."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
            self.transport.write(_answer(status, message, kind))
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is refused in the shape of all errors."""
        self.refuse_rest(HTTPStatus.BAD_REQUEST, msg)

    def _await_request(self) -> None:
        self._since, self._received = self.loop.time(), 0
        self._arriving = self.loop.call_later(ARRIVAL, self._look)

    def _look(self) -> None:
        left = self._since + ARRIVAL + self._received / PACE - self.loop.time()
        if left > 0:
            self._arriving = self.loop.call_later(left, self._look)
            return
        self._arriving = None
        if self._received or self.cycle is not None:
            self.refuse_rest(HTTPStatus.REQUEST_TIMEOUT, "The request took too long to arrive.")
        else:
            self.transport.close()

    def _disarm(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None


def _answer(status: HTTPStatus, message: str, kind: str) -> bytes:
    error: dict[str, Any] = {"message": message, "type": kind, "param": None, "code": None}
    body = json.dumps({"error": error}).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
