"""Blocks on their way to the write-back area, written by a thread of its own: a slow disk delays nobody.

Until a record is in its file it is read from here. Where the disk is slower than what leaves memory, blocks
are lost rather than waited for: they are computed again if somebody asks.
"""

import os
import sys
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from kvtool.cache.tiers import Move
from kvtool.engine.storage.direct import Bytes, Readable
from kvtool.engine.storage.writeback import Survivor, WriteBack

MOST = 256 << 20
"""Bytes that may wait for the disk."""

NICE = 10
"""Priority of threads that nobody waits for."""


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A record that its file, at `path`, may not have yet, to be read as if it had."""

    path: Path
    record: bytes
    move: Move

    def read(self, into: memoryview, offset: int) -> memoryview:
        """As of a `File`."""
        part = memoryview(self.record)[offset : offset + len(into)]
        into[: len(part)] = part
        return into[: len(part)]


class Writer:
    """Writes to `area`, one record after the other. For the scheduler's thread."""

    def __init__(self, area: WriteBack, most: int = MOST) -> None:
        self._area = area
        self._most = most
        self._thread = ThreadPoolExecutor(1, "kvtool-writer", yielding)
        self._begun: deque[tuple[Waiting, Future[None]]] = deque()
        self._waiting: dict[int, Waiting] = {}
        self._bytes = 0

    def put(self, move: Move, block: Survivor, data: Bytes) -> bool:
        """Write a block soon; False if too much waits already. KvtoolError where it fits no record."""
        record = self._area.record(block, data)
        if self._bytes and self._bytes + len(record) > self._most:
            return False
        self._bytes += len(record)
        waiting = self._waiting[move.target_slot] = Waiting(self._area.file.path, record, move)
        self._begun.append((waiting, self._thread.submit(self._area.write, move.target_slot, record)))
        return True

    @property
    def writing(self) -> bool:
        """Whether something is not written yet."""
        return bool(self._begun) and not self._begun[-1][1].done()

    def place_of(self, slot: int) -> tuple[Readable, int, int]:
        """Where a record can be read: of what, at which offset, how many bytes."""
        waiting = self._waiting.get(slot)
        if waiting is not None:
            return waiting, 0, len(waiting.record)
        return self._area.file, *self._area.place_of(slot)

    def settle(self) -> list[tuple[Move, OSError]]:
        """Let go of what is written by now; returns what could not be, and why."""
        failed = []
        while self._begun and self._begun[0][1].done():
            waiting, task = self._begun.popleft()
            self._bytes -= len(waiting.record)
            slot = waiting.move.target_slot
            if self._waiting[slot] is waiting:
                del self._waiting[slot]
            try:
                task.result()
            except OSError as error:
                failed.append((waiting.move, error))
        return failed

    def flush(self, within: float) -> None:
        """Wait until all is written, `within` seconds at most."""
        wait([task for _, task in self._begun], within)

    def close(self) -> None:
        """What is not begun is not written."""
        self._thread.shutdown(cancel_futures=True)


def yielding() -> None:
    """This thread takes what others leave of the processors, where threads have priorities (Linux)."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(NICE, os.getpriority(os.PRIO_PROCESS, thread)))
