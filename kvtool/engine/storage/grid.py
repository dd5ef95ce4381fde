"""Numbers as small integers: a grid of equal steps per group of elements, its step and offset in a byte each.

A step is the upper eight bits of a positive fp16, rounded up: neighbours are at most 1/8 apart. Half the
bytes of fp16 scales, so that a block of 32 tokens has grids of its own at the price of fp16 scales over 64
tokens, and the narrower group makes good what the coarser step costs. The offset is a whole number of steps,
which loses nothing: every element is within half a step. A group that stands so far from zero that its
offset would not fit gets a coarser step; its elements are then within about 1/226 of their size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

FARTHEST = 127
"""Largest offset in steps."""

LARGEST_STEP = 0xF7
"""The code below fp16's infinity: 61,440."""

NO_STEP = 0xFF
"""The code where no step is large enough: such codes must not be used."""

SMALLEST_STEP = 2.0**-17
"""Of code 1. Code 0 is no step: a group of zeros."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Codes with the grid of each group. codes: as given to `encode`, int8 if symmetric, else uint8.

    steps: uint8, offsets: int8 or None, broadcastable against codes.
    """

    codes: Tensor
    steps: Tensor
    offsets: Tensor | None


def encode(numbers: Tensor, axis: int, bits: int, symmetric: bool) -> Grid:
    """Round float32 `numbers` to the nearest point, ties to even; `axis` runs over the elements of a group.

    symmetric: codes -(2**(bits-1) - 1) ... 2**(bits-1) - 1 around zero; else 0 ... 2**bits - 1 and an
    offset. The step is NO_STEP where a number is not finite or too large for any.
    """
    if symmetric:
        top = 2 ** (bits - 1) - 1
        steps = _steps(numbers.abs().amax(axis, keepdim=True) / top)
        codes = torch.round(numbers / _divisor(steps)).clamp_(-top, top).to(torch.int8)
        return Grid(codes, steps, None)
    top = 2**bits - 1
    low, high = numbers.aminmax(dim=axis, keepdim=True)
    # A grid of 16 points spans 15 steps, and up to 16 where its ends round inwards: then all still fit.
    near = low.abs() / FARTHEST
    steps = _steps(torch.maximum((high - low) / (top + 1), near))
    fits = torch.round(high / _divisor(steps)) - torch.round(low / _divisor(steps)) <= top
    steps = torch.where(fits, steps, _steps(torch.maximum((high - low) / top, near)))
    step = _divisor(steps)
    offsets = torch.round(low / step).clamp_(-FARTHEST, FARTHEST)
    codes = (torch.round(numbers / step) - offsets).clamp_(0, top).to(torch.uint8)
    return Grid(codes, steps, offsets.to(torch.int8))


def decode(grid: Grid) -> Tensor:
    """float32, shaped like the codes."""
    numbers = grid.codes.float()
    if grid.offsets is not None:
        numbers += grid.offsets
    return numbers.mul_(step_sizes(grid.steps))


def _steps(exact: Tensor) -> Tensor:
    """uint8 codes of steps, none below `exact`; 0 only where that is 0, NO_STEP where it is too large."""
    half = exact.half()
    bits = half.view(torch.int16).to(torch.int32)
    bits += half.float() < exact
    codes = (bits + 0x7F) >> 7
    return codes.masked_fill_((codes < 0) | (codes > LARGEST_STEP), NO_STEP).to(torch.uint8)


def step_sizes(codes: Tensor) -> Tensor:
    """Steps that `codes` stand for, float32."""
    return (codes.to(torch.int16) << 7).view(torch.float16).float()


def _divisor(codes: Tensor) -> Tensor:
    """Steps to divide by: a group of zeros has none, and any will do."""
    return step_sizes(codes).clamp_min(SMALLEST_STEP)
