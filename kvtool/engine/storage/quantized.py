"""What the quantizing codecs share: keys and values on integer grids, with the sink left out.

A codec says how its keys and its values are coded (`Coding`); parts, encoding and decoding follow. All
that a block needs is in the block: its grids never span blocks, whatever else is stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from kvtool.engine.storage import grid
from kvtool.engine.storage.layout import LayerGroup, Part
from kvtool.engine.storage.packing import pack, packed_width, unpack
from kvtool.engine.storage.rotation import rotate
from kvtool.engine.storage.rounding import steered

TOKENS, CHANNELS = 1, 3
"""Axes of [layers, tokens, heads, dim] that a group may run along."""

GROUP = 32
"""Tokens that share a channel's grid: at most a block."""


@dataclass(frozen=True, slots=True)
class Coding:
    """Bits of a code, the axis that groups run along, and whether numbers are rotated before coding.

    Groups along TOKENS are GROUP tokens of one channel, along CHANNELS half a head of one token. Eight bits
    are symmetric around zero, fewer have an offset.
    """

    bits: int
    along: int
    rotated: bool

    @property
    def symmetric(self) -> bool:
        """Whether grids have no offset."""
        return self.bits == 8


@dataclass(frozen=True)
class Quantized:
    """Parts: `keys` [layers, tokens, heads, packed dim] and their grids `key_steps`, `key_offsets`; values
    likewise. Tokens are counted without the sink, which in the first block of a prompt stands apart in the
    arena's dtype: `sink_keys`, `sink_values` [layers, heads, dim]. Keys of steered codecs are rotated and
    grouped along TOKENS.
    """

    name: ClassVar[str]
    compressed: ClassVar[bool] = False
    steered: ClassVar[bool] = False
    keys: ClassVar[Coding]
    values: ClassVar[Coding]

    def config(self) -> dict[str, Any]:
        """No settings."""
        return {"codec": self.name}

    def parts(self, group: LayerGroup, tokens: int, dtype: str, first: bool) -> list[Part]:
        """Codes, grids, and the sink where there is one."""
        found = []
        for noun, coding, dim in (("key", self.keys, group.key_dim), ("value", self.values, group.value_dim)):
            coded = (group.layers, tokens - first, group.kv_heads, dim)
            codes = (*coded[:3], packed_width(dim, coding.bits))
            steps = _grids(coded, coding)
            found.append(Part(f"{noun}_steps", "U8", steps))
            if not coding.symmetric:
                found.append(Part(f"{noun}_offsets", "I8", steps))
            found.append(Part(f"{noun}s", "I8" if coding.symmetric else "U8", codes))
            if first:
                found.append(Part(f"sink_{noun}s", dtype, (group.layers, group.kv_heads, dim)))
        return found

    def encode(
        self, keys: Tensor, values: Tensor, first: bool, feedback: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Round to the nearest point of each group's grid; keys by `feedback`, where there is one."""
        parts: dict[str, Tensor] = {}
        for noun, coding, numbers in (("key", self.keys, keys), ("value", self.values, values)):
            if first:
                parts[f"sink_{noun}s"] = numbers[:, 0]
                numbers = numbers[:, 1:]
            wide = numbers.float()
            wide = _in_groups(rotate(wide) if coding.rotated else wide, coding)
            made = grid.encode(wide, coding.along + 1, coding.bits, coding.symmetric)
            codes = made.codes
            if noun == "key" and feedback is not None:
                codes = steered(wide, made, coding.bits, feedback)
            codes = _ungrouped(codes, coding, numbers.shape)
            parts[f"{noun}s"] = codes if coding.symmetric else pack(codes, coding.bits)
            parts[f"{noun}_steps"] = made.steps.squeeze(coding.along + 1)
            if made.offsets is not None:
                parts[f"{noun}_offsets"] = made.offsets.squeeze(coding.along + 1)
        return parts

    def held(self, keys: Tensor, values: Tensor, parts: Mapping[str, Tensor]) -> Tensor | None:
        """Unless a group has no step that is large enough."""
        steps = torch.cat([parts[f"{noun}_steps"].flatten(1) for noun in ("key", "value")], 1)
        return (steps != grid.NO_STEP).all(1)

    def decode(
        self,
        parts: Mapping[str, Tensor],
        group: LayerGroup,
        first: bool,
        dtype: torch.dtype,
        rotated: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Keys and values in `dtype`; `rotated` leaves them as attention over rotated blocks wants them."""
        restored = []
        for noun, coding, dim in (("key", self.keys, group.key_dim), ("value", self.values, group.value_dim)):
            codes = parts[f"{noun}s"]
            offsets = None
            if not coding.symmetric:
                codes = unpack(codes, dim, coding.bits)
                offsets = parts[f"{noun}_offsets"].unsqueeze(coding.along + 1)
            steps = parts[f"{noun}_steps"].unsqueeze(coding.along + 1)
            numbers = grid.decode(grid.Grid(_in_groups(codes, coding), steps, offsets))
            numbers = _ungrouped(numbers, coding, codes.shape)
            if coding.rotated and not rotated:
                numbers = rotate(numbers)
            if first:
                sink = parts[f"sink_{noun}s"].float()
                sink = rotate(sink) if coding.rotated and rotated else sink
                numbers = torch.cat([sink.unsqueeze(1), numbers], 1)
            # A step was rounded up, which can lift fp16's largest numbers over its edge.
            edge = torch.finfo(dtype).max
            restored.append(numbers.clamp(-edge, edge).to(dtype))
        return restored[0], restored[1]


def _size(count: int, coding: Coding) -> int:
    """Elements of a group where the axis has `count`."""
    return max(min(GROUP, count) if coding.along == TOKENS else -(-count // 2), 1)


def _grids(coded: tuple[int, ...], coding: Coding) -> tuple[int, ...]:
    """Shape of the steps for codes [layers, tokens, heads, dim]."""
    count = coded[coding.along]
    return (*coded[: coding.along], -(-count // _size(count, coding)), *coded[coding.along + 1 :])


def _in_groups(numbers: Tensor, coding: Coding) -> Tensor:
    """The axis cut into [groups, elements]. The first group may lack elements: its first one is repeated,
    which changes no extremes.
    """
    axis = coding.along
    count = numbers.shape[axis]
    size = _size(count, coding)
    missing = -count % size
    if missing:
        numbers = torch.cat([numbers.narrow(axis, 0, 1).repeat_interleave(missing, axis), numbers], axis)
    shape = numbers.shape
    return numbers.reshape(*shape[:axis], (count + missing) // size, size, *shape[axis + 1 :])


def _ungrouped(grouped: Tensor, coding: Coding, shape: tuple[int, ...]) -> Tensor:
    """Inverse of `_in_groups`."""
    whole = grouped.flatten(coding.along, coding.along + 1)
    count = shape[coding.along]
    return whole.narrow(coding.along, whole.shape[coding.along] - count, count)
