"""ASGI middleware: bodies that are too large are refused before they are read."""

import json
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class _TooLarge(Exception):
    """Raised where the application reads its body."""


DRAINED = 64 << 20
"""Bytes that are read and dropped before a refusal: a client that still sends would meet a closed connection
and never read why."""


async def _drain(receive: Receive) -> None:
    dropped = 0
    while dropped < DRAINED:
        message = await receive()
        dropped += len(message.get("body", b""))
        if not message.get("more_body"):
            return


class BodyLimit:
    """413 for bodies of more than `limit` bytes, whether they say so or not."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what is received; refuse before the application answers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self._limit:
            await _drain(receive)
            await self._refuse(send)
            return
        received = 0
        refused = False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                if message.get("more_body"):
                    await _drain(receive)
                raise _TooLarge
            return message

        async def watched(message: Message) -> None:
            nonlocal refused
            if received <= self._limit:
                await send(message)
            elif not refused:  # the framework has an answer of its own to a body that could not be read
                refused = True
                await self._refuse(send)

        try:
            await self._app(scope, counted, watched)
        except _TooLarge:
            await self._refuse(send)

    async def _refuse(self, send: Send) -> None:
        error: dict[str, Any] = {
            "message": f"The request body is larger than {self._limit} bytes.",
            "type": "invalid_request_error",
            "param": None,
            "code": "request_too_large",
        }
        body = json.dumps({"error": error}).encode()
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})
