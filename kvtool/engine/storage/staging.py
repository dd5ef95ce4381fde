"""Page-locked memory between disk and device: kept, bounded, and no piece used again before it was copied."""

import mmap
from collections.abc import Callable, Sequence
from threading import Condition

import torch

from kvtool.engine.compute.arrivals import Event
from kvtool.engine.storage.direct import PAGE

PIECE = 16 << 20
"""Bytes of a piece: one long read."""

TOTAL = 256 << 20
"""Bytes of all: what a disk of 10 GB/s reads during a step of 25 ms, after which pieces are copied."""

FEWEST = 8
"""Pieces, where blocks are longer than PIECE: readers fill some while others are copied."""


class StagingArea:
    """Pieces that readers take and fill, and that are given back behind the copies out of them. Thread-safe.

    largest: bytes of a block, which fits wherever in a file it begins. Pieces begin at pages.
    """

    def __init__(self, largest: int, page_locked: bool) -> None:
        self.size = max(PIECE, -(-largest // PAGE) * PAGE + PAGE)
        count = max(TOTAL // self.size, FEWEST)
        if page_locked:  # CUDA gives whole pages
            self.memory = torch.empty(count * self.size, dtype=torch.uint8, pin_memory=True)
        else:
            self.memory = torch.frombuffer(mmap.mmap(-1, count * self.size), dtype=torch.uint8)
        assert self.memory.data_ptr() % PAGE == 0
        self._bytes = memoryview(self.memory.numpy())  # type: ignore[arg-type]
        self._free = list(range(count))[::-1]
        self._leaving: list[tuple[int, Sequence[Event]]] = []
        self._changed = Condition()
        self._closed = False

    def take(self, given_up: Callable[[], bool]) -> int | None:
        """A piece, once there is one; None if `given_up` before."""
        while True:
            with self._changed:
                if self._closed or given_up():
                    return None
                self._collect()
                if self._free:
                    return self._free.pop()
                if not self._leaving:
                    self._changed.wait()
                    continue
                _, events = self._leaving[0]
            for event in events:
                event.synchronize()

    def give_back(self, piece: int, after: Sequence[Event] = ()) -> None:
        """`piece` may be filled again after these copies."""
        with self._changed:
            self._leaving.append((piece, after))
            self._changed.notify_all()

    def look(self) -> None:
        """Somebody has given up: whoever waits looks whether it was he."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody gets a piece any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def start(self, piece: int) -> int:
        """Where it begins in `memory`."""
        return piece * self.size

    def bytes_of(self, piece: int) -> memoryview:
        """To read into."""
        return self._bytes[self.start(piece) : self.start(piece + 1)]

    def _collect(self) -> None:
        over = [each for each in self._leaving if all(event.query() for event in each[1])]
        self._leaving = [each for each in self._leaving if each not in over]
        self._free += [piece for piece, _ in over]
