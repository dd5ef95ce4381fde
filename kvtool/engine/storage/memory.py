"""Memory that is there before it is needed, and how much there is.

A page's first touch costs several times what filling it does: a page cache gives a block in less time than
the kernel takes to find, and to zero, the pages that it goes to. So readers use their buffers again, and the
slots that blocks end in are made real while nobody waits.
"""

import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

POPULATE_WRITE = 23
"""Linux's MADV_POPULATE_WRITE (since 5.14): pages as if written to; what they hold is left alone."""


class Staging(threading.local):
    """A buffer of each thread's own, kept as long as its longest block."""

    _buffer = bytearray()

    def take(self, size: int) -> memoryview:
        """`size` bytes, whatever they hold, the thread's until it takes again."""
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        return memoryview(self._buffer)[:size]


def fresh(size: int) -> memoryview:
    """`size` bytes of their own, in pages of their own."""
    return memoryview(mmap.mmap(-1, size))


def available() -> int:
    """Bytes that programs and the page cache can have, as Linux estimates it."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def populate(tensors: Sequence[Tensor]) -> None:
    """Make the pages of `tensors` (contiguous, on the CPU) real; others may write to them meanwhile.

    Does nothing where the kernel cannot: the first write then pays.
    """
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for tensor in tensors:
        begin = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
        madvise(begin, tensor.data_ptr() + tensor.nbytes - begin, POPULATE_WRITE)
