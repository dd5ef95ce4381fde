"""Root mean square norm on CPU cores: what each worker does, without the interpreter."""

from functools import cache

import numpy as np
from numba import carray

from kvtool.compiling import c_function, njit
from kvtool.engine.compute.cpu import vector

WORKERS, NUMBER, CREW, COUNT, WIDTH, IN, WEIGHT, OUT, EPSILON, FIELDS = range(10)
"""Places in the array of arguments, int64: addresses and counts."""


@njit(error_model="numpy", fastmath={"reassoc", "contract"})
def _normalize(given, worker):  # type: ignore[no-untyped-def]
    """This worker's share of the rows. A row may hold NaN or, with no epsilon, nothing but zeros: it must
    not end the loop."""
    count, width, workers = given[COUNT], given[WIDTH], given[WORKERS]
    weight = carray(vector.floats(given[WEIGHT]), width)
    epsilon = carray(vector.floats(given[EPSILON]), 1)[0]
    for row in range(count * worker // workers, count * (worker + 1) // workers):
        old = carray(vector.floats(given[IN] + 4 * row * width), width)
        new = carray(vector.floats(given[OUT] + 4 * row * width), width)
        squares = np.float32(0.0)
        for at in range(width):
            squares += old[at] * old[at]
        factor = np.float32(1.0) / np.sqrt(squares / np.float32(width) + epsilon)
        for at in range(width):
            new[at] = old[at] * factor * weight[at]


def _work(data):  # type: ignore[no-untyped-def]
    """`data`: the array of arguments."""
    given = carray(data, FIELDS, np.int64)
    number, crew = np.int64(vector.call(given[NUMBER])), np.int64(vector.call(given[CREW]))
    for worker in range(number, given[WORKERS], crew):
        _normalize(given, worker)


@cache
def work() -> int:
    """Address of `_work`, compiled."""
    return c_function(_work)
