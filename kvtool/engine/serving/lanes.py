"""Threads that tokenize: one for small texts and one for large ones, so that no small one waits for a large.

A thread's order is that of arrival. What a client sends behind a large text of its own goes the same way, so
that its requests keep their order.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

LARGE = 64 << 10
"""Bytes of a request that are a large text: some ten milliseconds of tokenizing."""


class Lanes:
    """Two threads; the tokenizer lets go of the interpreter's lock while it works. Used in one event loop."""

    def __init__(self) -> None:
        self._small = ThreadPoolExecutor(1, thread_name_prefix="kvtool-tokenizer")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="kvtool-tokenizer-large")
        self._behind: Counter[Hashable] = Counter()

    async def run(self, size: int, client: Hashable, function: Callable[[], T]) -> T:
        """`function` for a request of `size` bytes. client: whose requests keep their order, or None."""
        loop = asyncio.get_running_loop()
        if size <= LARGE and not self._behind[client]:
            return await loop.run_in_executor(self._small, function)
        self._behind[client] += client is not None
        try:
            return await loop.run_in_executor(self._large, function)
        finally:
            self._behind[client] -= client is not None
            if not self._behind[client]:
                del self._behind[client]

    def close(self) -> None:
        """Begin nothing more, and wait for what runs."""
        for lane in (self._small, self._large):
            lane.shutdown(cancel_futures=True)
