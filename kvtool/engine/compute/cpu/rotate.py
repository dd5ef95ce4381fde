"""Rotary position embedding on CPU cores: what each worker does, without the interpreter."""

from functools import cache

import numpy as np
from numba import carray

from kvtool.compiling import c_function, njit
from kvtool.engine.compute.cpu import vector

(
    WORKERS, NUMBER, CREW, TOKENS, HEADS, WIDTH, IN, IN_HEAD, IN_ROW, OUT, COS, SIN, FIELDS,
) = range(13)  # fmt: skip
"""Places in the array of arguments, int64: addresses and counts; strides in float32. OUT is [TOKENS, HEADS,
WIDTH], COS and SIN are [TOKENS, WIDTH]."""


@njit
def _rotate(given, worker):  # type: ignore[no-untyped-def]
    """This worker's share of the rows. Products are rounded before they are added up, as torch's are."""
    tokens, heads, width, workers = given[TOKENS], given[HEADS], given[WIDTH], given[WORKERS]
    half = width // 2
    for row in range(tokens * worker // workers, tokens * (worker + 1) // workers):
        cos = carray(vector.floats(given[COS] + 4 * row * width), width)
        sin = carray(vector.floats(given[SIN] + 4 * row * width), width)
        for head in range(heads):
            place = given[IN] + 4 * (head * given[IN_HEAD] + row * given[IN_ROW])
            old = carray(vector.floats(place), width)
            new = carray(vector.floats(given[OUT] + 4 * (row * heads + head) * width), width)
            for at in range(half):
                new[at] = old[at] * cos[at] + -old[at + half] * sin[at]
            for at in range(half, width):
                new[at] = old[at] * cos[at] + old[at - half] * sin[at]


def _work(data):  # type: ignore[no-untyped-def]
    """`data`: the array of arguments."""
    given = carray(data, FIELDS, np.int64)
    number, crew = np.int64(vector.call(given[NUMBER])), np.int64(vector.call(given[CREW]))
    for worker in range(number, given[WORKERS], crew):
        _rotate(given, worker)


@cache
def work() -> int:
    """Address of `_work`, compiled."""
    return c_function(_work)
