"""Words of distinct blocks, one after another: in memory while there are few, beyond that in a file.

The file is temporary and has no name, so nothing of it outlives the process, however that ends. It lies
in $TMPDIR. It is mapped, and what was read or written of it is let go of batch by batch: the memory that a
log takes does not grow with its text.
"""

import mmap
import os
import tempfile
from typing import IO

import numpy as np
from numpy.typing import NDArray

from kvtool.errors import KvtoolError

KEPT = 64 << 20
"""Words (256 MiB) that stay in memory, and by which the file grows."""


class Spool:
    """A growing array of uint32. `words` is replaced when it grows; what was taken of it stays valid."""

    def __init__(self, words: int, kept: int | None = None) -> None:
        self.words: NDArray[np.uint32] = np.zeros(words, np.uint32)
        self._kept = KEPT if kept is None else kept
        self._file: IO[bytes] | None = None

    def reserve(self, words: int, used: int) -> None:
        """Room for `words` words in all, of which `used` are in use."""
        if words <= len(self.words):
            return
        if self._file is None and words <= self._kept:
            old = self.words
            self.words = np.zeros(min(max(words, len(old) * 3 // 2), self._kept), np.uint32)
            self.words[:used] = old[:used]
            return
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115  # as long-lived as the arrays over it
                self._file.write(self.words[:used].data)
                self._file.flush()
            _extend(self._file.fileno(), 4 * (-(-words // self._kept) * self._kept))
            mapped = mmap.mmap(self._file.fileno(), 0)
        except OSError as error:
            raise KvtoolError(
                f"{tempfile.gettempdir()}: {error.strerror}: no room for the token ids of distinct blocks",
                "they take about as much as the log's own text: name a larger folder with TMPDIR",
            ) from error
        self.words = np.frombuffer(mapped, np.uint32)


def let_go(words: NDArray[np.uint32]) -> None:
    """Take an array's pages out of this process's memory if they lie in a file; they come back when they are
    asked for."""
    owner: object = words
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    if isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        owner.madvise(mmap.MADV_DONTNEED)


def spooled(rows: int, width: int) -> NDArray[np.uint32]:
    """An array [rows, width] that lies in a file if it is large."""
    spool = Spool(0)
    spool.reserve(rows * width, 0)
    return spool.words[: rows * width].reshape(rows, width)


def _extend(descriptor: int, size: int) -> None:
    """Claim the room on disk now: a full disk behind a mapping would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)
