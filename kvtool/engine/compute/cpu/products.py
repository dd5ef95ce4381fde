"""Matrix products of linear layers on CPU cores: what each worker does, without the interpreter.

A weight lies in panels of up to PANEL outputs, [inputs, outputs of the panel] each, read once from one end to
the other while the rows' sums are in registers. Every sum is taken over the inputs in their order, DEPTH at
a time: a row's result depends neither on the rows beside it nor on the number of workers.
"""

from functools import cache

import numpy as np
from numba import carray

from kvtool.compiling import c_function, njit
from kvtool.engine.compute.cpu import vector

PANEL = vector.LANES * vector.VECTORS
"""Outputs of a panel."""

DEPTH = 64
"""Inputs that are added up for all rows before the next ones: their part of a panel stays in the nearest
cache, and a sum of such sums is rounded less than one long sum."""

ROWS = 64
"""Rows of a task."""

SILU, GELU_TANH = 1, 2
"""Activations of a gated layer."""

(
    WORKERS, NUMBER, CREW, COUNT, INPUTS, OUTPUTS, IN, OUT,
    WEIGHT, BIAS, GATE, GATE_BIAS, ACTIVATION, SCRATCH, FIELDS,
) = range(15)  # fmt: skip
"""Places in the array of arguments, int64: addresses and counts. OUTPUTS is a multiple of LANES.
With a GATE the weight's results are multiplied by ACTIVATION(the results of the gate's weight)."""


@njit
def _wide(sums, apart, panel, rows, inputs, count, depth, ahead, hop):  # type: ignore[no-untyped-def]
    """sums [count, PANEL] += rows [count, depth] times panel [depth, PANEL]. ahead, hop: see `vector.py`."""
    some = vector.MANY
    while count >= some:
        vector.panel_many_3(sums, apart, panel, PANEL, rows, inputs, 1, depth, ahead, hop)
        sums, rows, ahead = sums + 4 * some * apart, rows + 4 * some * inputs, ahead + hop * depth
        count -= some
    if count >= 4:
        vector.panel_4_3(sums, apart, panel, PANEL, rows, inputs, 1, depth, ahead, hop)
        sums, rows, ahead = sums + 16 * apart, rows + 16 * inputs, ahead + hop * depth
        count -= 4
    if count >= 2:
        vector.panel_2_3(sums, apart, panel, PANEL, rows, inputs, 1, depth, ahead, hop)
        sums, rows, ahead = sums + 8 * apart, rows + 8 * inputs, ahead + hop * depth
        count -= 2
    if count:
        vector.panel_1_3(sums, apart, panel, PANEL, rows, inputs, 1, depth, ahead, hop)


@njit
def _narrow(sums, apart, panel, width, rows, inputs, count, depth, ahead, hop):  # type: ignore[no-untyped-def]
    """The same for one vector of a panel that is `width` wide."""
    some = vector.MANY
    while count >= some:
        vector.panel_many_1(sums, apart, panel, width, rows, inputs, 1, depth, ahead, hop)
        sums, rows = sums + 4 * some * apart, rows + 4 * some * inputs
        count -= some
    while count:
        vector.panel_1_1(sums, apart, panel, width, rows, inputs, 1, depth, ahead, hop)
        sums, rows = sums + 4 * apart, rows + 4 * inputs
        count -= 1


@njit
def _panel(sums, apart, panel, width, bias, rows, inputs, count):  # type: ignore[no-untyped-def]
    """sums [count, width] = bias [width] + rows [count, inputs] times panel [inputs, width]."""
    start = carray(vector.floats(bias), width)
    for row in range(count):
        out = carray(vector.floats(sums + 4 * row * apart), width)
        for at in range(width):
            out[at] = start[at]
    groups = count // vector.MANY + (count % vector.MANY >= 4) + (count % 4 >= 2) + count % 2
    hop = width * 4 // groups
    for first in range(0, inputs, DEPTH):
        depth = min(DEPTH, inputs - first)
        here, those = panel + 4 * first * width, rows + 4 * first
        ahead = here + 4 * depth * width
        if width == PANEL:
            _wide(sums, apart, here, those, inputs, count, depth, ahead, hop)
        else:
            for at in range(0, 4 * width, 4 * vector.LANES):
                _narrow(sums + at, apart, here + at, width, those, inputs, count, depth, ahead, hop)


@njit
def _layer(given, worker, scratch):  # type: ignore[no-untyped-def]
    """This worker's share of the panels and rows."""
    inputs, outputs = given[INPUTS], given[OUTPUTS]
    blocks = (given[COUNT] + ROWS - 1) // ROWS
    tasks = blocks * ((outputs + PANEL - 1) // PANEL)
    for task in range(tasks * worker // given[WORKERS], tasks * (worker + 1) // given[WORKERS]):
        left, first = task // blocks * PANEL, task % blocks * ROWS
        width, count = min(PANEL, outputs - left), min(ROWS, given[COUNT] - first)
        rows = given[IN] + 4 * first * inputs
        out = given[OUT] + 4 * (first * outputs + left)
        panel, bias = given[WEIGHT] + 4 * left * inputs, given[BIAS] + 4 * left
        _panel(out, outputs, panel, width, bias, rows, inputs, count)
        if given[GATE]:
            panel, bias = given[GATE] + 4 * left * inputs, given[GATE_BIAS] + 4 * left
            _panel(scratch, width, panel, width, bias, rows, inputs, count)
            for row in range(count):
                for at in range(0, width, vector.LANES):
                    gate, sums = scratch + 4 * (row * width + at), out + 4 * (row * outputs + at)
                    if given[ACTIVATION] == SILU:
                        vector.gated_silu(sums, gate)
                    else:
                        vector.gated_gelu_tanh(sums, gate)


def _layer_work(data):  # type: ignore[no-untyped-def]
    """`data`: the array of arguments."""
    given = carray(data, FIELDS, np.int64)
    number, crew = np.int64(vector.call(given[NUMBER])), np.int64(vector.call(given[CREW]))
    for worker in range(number, given[WORKERS], crew):
        _layer(given, worker, given[SCRATCH] + 4 * ROWS * PANEL * number)


@cache
def layer_work() -> int:
    """Address of `_layer_work`, compiled."""
    return c_function(_layer_work)
