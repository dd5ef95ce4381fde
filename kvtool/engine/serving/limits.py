"""ASGI middleware: whose body is read, and how much of it; all else is refused before it is looked at."""

import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvtool.engine.serving.api import ApiError
from kvtool.engine.serving.keys import Keys


class _Refused(Exception):
    """Raised where the application reads its body."""


DRAINED = 64 << 20
"""Bytes that are read and dropped before a refusal: a client that still sends would meet a closed connection
and never read why."""

AT_ONCE = 16
"""Bodies of the largest size that the server holds; smaller ones are as many more."""

GUARDED = ("/v1/", "/kv/")
"""Paths that want a key."""


class KeyFirst:
    """401 for those without a key, whatever they send: nobody parses it."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Look at the Authorization header only."""
        if scope["type"] == "http" and scope["path"].startswith(GUARDED):
            header = dict(scope["headers"]).get(b"authorization")
            try:
                self._keys.caller(None if header is None else header.decode("latin-1"))
            except ApiError as error:
                await _drain(receive)
                await _refuse(send, error)
                return
        await self._app(scope, receive, send)


class BodyLimit:
    """413 for bodies of more than `limit` bytes, whether they say so or not; 429 while the bodies of all
    requests that are being answered take AT_ONCE times as much."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count what is received; refuse before the application answers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self._limit:
            await _drain(receive)
            await _refuse(send, self._too_large())
            return
        received = 0
        refusal: ApiError | None = None
        told = False

        async def counted() -> Message:
            nonlocal received, refusal
            message = await receive()
            size = len(message.get("body", b""))
            received += size
            self._held += size
            if received > self._limit:
                refusal = self._too_large()
            elif self._held > AT_ONCE * self._limit:
                refusal = _too_many()
            if refusal is not None:
                if message.get("more_body"):
                    await _drain(receive)
                raise _Refused
            return message

        async def watched(message: Message) -> None:
            nonlocal told
            if refusal is None:
                await send(message)
            elif not told:  # the framework has an answer of its own to a body that could not be read
                told = True
                await _refuse(send, refusal)

        try:
            await self._app(scope, counted, watched)
        except _Refused:
            assert refusal is not None
            await _refuse(send, refusal)
        finally:
            self._held -= received

    def _too_large(self) -> ApiError:
        return ApiError(
            413, f"The request body is larger than {self._limit} bytes.", code="request_too_large"
        )


def _too_many() -> ApiError:
    return ApiError(
        429,
        "The server holds as many long prompts as it can.",
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"Retry-After": "1"},
    )


async def _drain(receive: Receive) -> None:
    dropped = 0
    while dropped < DRAINED:
        message = await receive()
        dropped += len(message.get("body", b""))
        if not message.get("more_body"):
            return


async def _refuse(send: Send, error: ApiError) -> None:
    own = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    headers = [(b"content-type", b"application/json"), (b"connection", b"close"), *own]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(error.body).encode()})
