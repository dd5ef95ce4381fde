"""Threads that tokenize: one for small texts and one for large ones, so that no small one waits for a large.

A thread's order is that of arrival. What a client sends behind a large text of its own goes the same way, so
that its requests keep their order.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from kvtool.engine.serving.api import ApiError
from kvtool.engine.serving.connection import SHUTTING_DOWN

T = TypeVar("T")

LARGE = 64 << 10
"""Bytes of a request that are a large text: some ten milliseconds of tokenizing."""


class Lanes:
    """Two threads; the tokenizer lets go of the interpreter's lock while it works. Used in one event loop."""

    def __init__(self) -> None:
        self._small = ThreadPoolExecutor(1, thread_name_prefix="kvtool-tokenizer")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="kvtool-tokenizer-large")
        self._behind: Counter[Hashable] = Counter()
        self._work: set[Future[Any]] = set()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._ended = False

    @property
    def busy(self) -> bool:
        """Whether a text is being tokenized. Nothing can interrupt a tokenizer."""
        return any(work.running() for work in list(self._work))

    async def run(self, size: int, client: Hashable, function: Callable[[], T]) -> T:
        """`function` for a request of `size` bytes. client: whose requests keep their order, or None.

        503 from the end on.
        """
        if size <= LARGE and not self._behind[client]:
            return await self._in(self._small, function)
        self._behind[client] += client is not None
        try:
            return await self._in(self._large, function)
        finally:
            self._behind[client] -= client is not None
            if not self._behind[client]:
                del self._behind[client]

    def end(self) -> None:
        """Begin nothing more, and wait no longer for what runs: whoever waits is told."""
        self._ended = True
        for lane in (self._small, self._large):
            lane.shutdown(wait=False, cancel_futures=True)
        for waiting in list(self._waiting):
            waiting.cancel()

    async def _in(self, lane: ThreadPoolExecutor, function: Callable[[], T]) -> T:
        if self._ended:
            raise _shutting_down()
        work = lane.submit(function)
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        waiting = asyncio.wrap_future(work)
        self._waiting.add(waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise _shutting_down() from None
        finally:
            self._waiting.discard(waiting)


def _shutting_down() -> ApiError:
    return ApiError(503, SHUTTING_DOWN, kind="server_error")
