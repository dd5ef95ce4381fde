"""A file read at any place: past the page cache where that is wanted and its file system can."""

import errno
import os
from pathlib import Path
from threading import Lock
from typing import Protocol

PAGE = 4096
"""A direct read's offset, length and memory are multiples of it; no disk has larger sectors."""

Bytes = bytes | bytearray | memoryview
"""A block's bytes, as its codec made them."""

Came = memoryview | OSError
"""Bytes, fewer than were asked for at a file's end, or why there are none."""

DIRECT = getattr(os, "O_DIRECT", 0)


class Readable(Protocol):
    """What blocks are read from."""

    @property
    def path(self) -> Path:
        """Its file."""
        ...

    def read(self, into: memoryview, offset: int) -> Came:
        """What of `into` was filled from `offset` on."""
        ...


class File:
    """Opened when it is first read. Thread-safe. OSError is an answer here: one bad file stops nobody."""

    def __init__(self, path: Path, direct: bool = False) -> None:
        """direct: what is read in whole pages into whole pages is read past the cache."""
        self.path = path
        self.direct = direct
        self.refused = 0
        """Reads that the file system did not take past the cache."""
        self._able = DIRECT != 0
        self._open: dict[int, int] = {}
        self._opening = Lock()

    def read(self, into: memoryview, offset: int) -> Came:
        """What of `into` was filled from `offset` on."""
        direct = self.direct and offset % PAGE == len(into) % PAGE == 0
        try:
            if direct and self._able:
                try:
                    return into[: _fill(self.descriptor(DIRECT), into, offset, PAGE)]
                except OSError as error:
                    if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                        raise
                    self._able = False
            self.refused += direct
            return into[: _fill(self.descriptor(), into, offset, 1)]
        except OSError as error:
            return error

    def descriptor(self, flags: int = 0) -> int:
        """Open for reading. Raises OSError."""
        with self._opening:
            if flags not in self._open:
                self._open[flags] = os.open(self.path, os.O_RDONLY | flags)
            return self._open[flags]

    def close(self) -> None:
        """Let go; it is opened again if it is read again."""
        with self._opening:
            for descriptor in self._open.values():
                os.close(descriptor)
            self._open.clear()


def _fill(descriptor: int, into: memoryview, offset: int, unit: int) -> int:
    """Bytes read. Only a file's end leaves a part of a `unit`."""
    done = 0
    while done < len(into):
        count = os.preadv(descriptor, [into[done:]], offset + done)
        done += count
        if not count or done % unit:
            break
    return done
