"""One layer of blocks from host memory into its slots, read by the device itself over the bus.

Blocks in host memory are whole, and a layer's part of one is too small for a copy of its own: thousands of
copies would cost the host more than the bus. A kernel takes them all in one launch, and a few programs
keep enough reads under way for the bus, so that the compute beside it keeps its processors.
"""

import triton
import triton.language as tl
from torch import Tensor

STEP = 8192
"""Elements that a program reads at once: 16 KiB of 16-bit ones."""

PROGRAMS = 16
"""Programs of a launch: 256 KiB under way cover the latency of a bus of 64 GB/s twice."""


def lift(
    memory: Tensor, sources: Tensor, starts: tuple[int, int], keys: Tensor, values: Tensor, targets: Tensor
) -> None:
    """Rows `sources` of `memory` [rows, elements] into slots `targets` of keys and values [slots, ...].

    starts: where in a row the layer's keys and values begin. `memory` is page-locked, or on the device.
    """
    _lift[(PROGRAMS,)](
        memory,
        sources,
        keys,
        values,
        targets,
        len(sources),
        memory.stride(0),
        *starts,
        KEY=keys[0].numel(),
        VALUE=values[0].numel(),
        STEP=STEP,
        PROGRAMS=PROGRAMS,
        num_warps=8,
    )


@triton.jit(do_not_specialize=["count"])
def _lift(
    MEMORY,
    SOURCES,
    KEYS,
    VALUES,
    TARGETS,
    count,
    stride,
    key_start,
    value_start,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    STEP: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Grid (programs): each takes every so many pieces of keys and of values."""
    key_pieces: tl.constexpr = (KEY + STEP - 1) // STEP
    pieces: tl.constexpr = key_pieces + (VALUE + STEP - 1) // STEP
    at = tl.arange(0, STEP)
    for piece in range(tl.program_id(0), count * pieces, PROGRAMS):
        block = piece // pieces
        part = piece % pieces
        row = MEMORY + tl.load(SOURCES + block) * stride
        slot = tl.load(TARGETS + block)
        if part < key_pieces:
            place = part * STEP + at
            found = tl.load(row + key_start + place, mask=place < KEY)
            tl.store(KEYS + slot * KEY + place, found, mask=place < KEY)
        else:
            place = (part - key_pieces) * STEP + at
            found = tl.load(row + value_start + place, mask=place < VALUE)
            tl.store(VALUES + slot * VALUE + place, found, mask=place < VALUE)


def lift_reference(
    memory: Tensor, sources: Tensor, starts: tuple[int, int], keys: Tensor, values: Tensor, targets: Tensor
) -> None:
    """`lift` by index."""
    for start, tensor in zip(starts, (keys, values), strict=True):
        part = memory[sources, start : start + tensor[0].numel()]
        tensor[targets] = part.view(-1, *tensor.shape[1:])
