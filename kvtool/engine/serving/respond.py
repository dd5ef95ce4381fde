"""One completion over HTTP: submit, then stream or collect; a client that leaves frees its slots."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from kvtool.engine.serving.answers import ChatAnswer, TextAnswer, usage_object
from kvtool.engine.serving.api import ApiError, ChatRequest, CompletionRequest
from kvtool.engine.serving.connection import SHUTTING_DOWN
from kvtool.engine.serving.generation import Delta, Generation, Usage
from kvtool.engine.serving.runtime import QueueFull, Runtime, TooMany, Unavailable


class Deltas:
    """Carries deltas from the scheduler's thread into this event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Delta]] = asyncio.Queue()

    def emit(self, number: int, delta: Delta) -> None:
        """Called in the scheduler's thread; what comes after the loop has ended is dropped."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, (number, delta))

    async def of(self, generations: Sequence[Generation]) -> AsyncIterator[tuple[int, Delta]]:
        """(choice, delta) until every generation has ended. A failed engine is an ApiError."""
        left = len(generations)
        while left:
            number, delta = await self._queue.get()
            if delta.finish == "failed":
                raise ApiError(500, "The engine has failed.", kind="server_error")
            if delta.finish == "cancelled":
                raise ApiError(503, SHUTTING_DOWN, kind="server_error")
            left -= delta.finish is not None
            yield number, delta


def submit(runtime: Runtime, generations: Sequence[Generation]) -> None:
    """Queue all; 429 with Retry-After when there is no room, 503 when the server ends.

    400 where there will never be: who tried again would try for ever.
    """
    try:
        runtime.submit(generations)
    except TooMany as error:
        asked = f"n: the request asks for {len(generations)} answers, this server gives {error.most}"
        raise ApiError(400, asked, param="n") from error
    except QueueFull as full:
        raise ApiError(
            429,
            "The server's queue is full.",
            kind="rate_limit_error",
            code="rate_limit_exceeded",
            headers={"Retry-After": str(full.retry_after)},
        ) from full
    except Unavailable as error:
        raise ApiError(503, f"Not available: {error}.", kind="server_error") from error


async def respond(
    request: Request,
    runtime: Runtime,
    body: ChatRequest | CompletionRequest,
    generations: Sequence[Generation],
    deltas: Deltas,
    answer: ChatAnswer | TextAnswer,
) -> Response:
    """Submit and answer as the body asks."""
    submit(runtime, generations)

    def leave() -> None:
        for generation in generations:
            if generation.finish is None:
                runtime.cancel(generation)

    if body.stream:
        with_usage = body.stream_options is not None and body.stream_options.include_usage
        events = _events(deltas.of(generations), answer, body.n, with_usage, leave)
        return StreamingResponse(
            events,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
    collect = asyncio.create_task(_collect(deltas.of(generations), answer))
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({collect, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not collect.done():
            return Response(status_code=499)  # nobody reads it; nginx's code for a client that left
        await collect
    finally:
        collect.cancel()
        gone.cancel()
        leave()
    return JSONResponse(answer.whole(usage_object(_usages(answer), body.n)))


async def _events(
    deltas: AsyncIterator[tuple[int, Delta]],
    answer: ChatAnswer | TextAnswer,
    choices: int,
    with_usage: bool,
    leave: Callable[[], None],
) -> AsyncIterator[bytes]:
    try:
        async for number, delta in deltas:
            for chunk in answer.chunks(number, delta):
                yield _event({**chunk, "usage": None} if with_usage else chunk)
        if with_usage:
            yield _event(answer.usage_chunk(usage_object(_usages(answer), choices)))
        yield b"data: [DONE]\n\n"
    except ApiError as error:
        yield _event(error.body)
    finally:
        leave()


async def _collect(deltas: AsyncIterator[tuple[int, Delta]], answer: ChatAnswer | TextAnswer) -> None:
    async for number, delta in deltas:
        answer.choices[number].add(delta)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _usages(answer: ChatAnswer | TextAnswer) -> list[Usage]:
    return [choice.usage for choice in answer.choices if choice.usage is not None]


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
