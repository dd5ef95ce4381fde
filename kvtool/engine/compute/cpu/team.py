"""torch's own OpenMP workers, lent to our code: a second set of threads would fight them for the cores."""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from kvtool.engine.compute.cpu import vector


class Team:
    """The workers that torch's operations run on when they are called from the same thread."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._parallel = library.GOMP_parallel
        self._parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        self._parallel.restype = None
        self.number = _address(library.omp_get_thread_num)
        """Address of `int (void)`: which of the workers asks."""
        self.crew = _address(library.omp_get_num_threads)
        """Address of `int (void)`: how many have come."""
        self.barrier = _address(library.GOMP_barrier)
        """Address of `void (void)`: returns when all workers have called it."""

    def run(self, function: int, data: int, workers: int) -> None:
        """Call the C function `void (void *)` at an address on `workers` threads and wait for all."""
        self._parallel(function, data, workers, 0)


def _address(function: Callable[..., object]) -> int:
    found = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    assert found is not None
    return found


@cache
def torch_team() -> Team | None:
    """None where torch has no OpenMP of GNU's interface, or where it cannot be told which one it has, and on
    machines so old that our kernels would be slow.

    The interface is that of GCC's compiled code (https://gcc.gnu.org/onlinedocs/libgomp/The-libgomp-ABI.html);
    LLVM's and Intel's libraries have it on Linux, too.
    """
    if not vector.FUSED:
        return None
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    names = ("libgomp", "libiomp5", "libomp")
    loaded = {line.split()[-1] for line in lines if line.rpartition("/")[2].startswith(names)}
    if len(loaded) > 1:
        home = str(Path(torch.__file__).parent.parent)
        loaded = {path for path in loaded if path.startswith(home)}
    if len(loaded) != 1:
        return None
    try:
        return Team(ctypes.CDLL(loaded.pop()))
    except (OSError, AttributeError):
        return None
