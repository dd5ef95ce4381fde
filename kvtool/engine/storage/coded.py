"""Blocks between a codec's bytes and an arena, many at a time; the arithmetic is the arena's device's.

Bytes cross to the device as they are stored. What the arena keeps in the same codec is copied there, the rest
is restored there; and what leaves is coded before it is copied out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from kvtool.engine.compute.arena import Arena, Block, Blocks
from kvtool.engine.compute.device import upload
from kvtool.engine.compute.kernels.layers import QuantizedBlocks
from kvtool.engine.compute.quantized_arena import NAMES, QuantizedArena
from kvtool.engine.storage.codec import (
    block_parts,
    decode_block,
    decode_blocks,
    encode_blocks,
    stacks,
    tensors_of,
)
from kvtool.engine.storage.direct import Bytes
from kvtool.engine.storage.layout import BlockShape
from kvtool.engine.storage.leaving import Leaving
from kvtool.engine.storage.quantized import Quantized

if TYPE_CHECKING:
    from kvtool.engine.storage.codec import BlockCodec

AT_ONCE = 64
"""Blocks that are coded and copied together: bounds the memory that it takes."""

RAW_AT_ONCE = 8
"""Blocks that become raw together in an arena that squeezes them at once."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A block's bytes as a codec made them. `first`: it begins a prompt."""

    codec: "BlockCodec"
    data: Bytes
    first: bool

    @property
    def raw(self) -> bool:
        """Whether these are the elements of an arena with all its bits."""
        return self.codec.name == "raw"

    def decode(self, shape: BlockShape) -> Block:
        """Keys and values by layer, on the CPU, in the arena's dtype; they may be views of `data`."""
        data = bytearray(self.data) if isinstance(self.data, bytes) else self.data
        return list(decode_block(self.codec, shape, data, self.first))


def encode_from(
    arena: Arena, codec: "BlockCodec", shape: BlockShape, slots: Sequence[int], firsts: Sequence[bool]
) -> list[Callable[[], bytes]]:
    """What gives the bytes in `codec` of each block in `slots`, which may be written again at once.

    It raises KvtoolError if the block could not be coded.
    """
    found: dict[int, Callable[[], bytes]] = {}
    kinds: dict[tuple[bool, bool], list[int]] = {}
    for place, (slot, first) in enumerate(zip(slots, firsts, strict=True)):
        ready = isinstance(arena, QuantizedArena) and arena.codec == codec and not arena.is_raw(slot)
        kinds.setdefault((first, ready and not first), []).append(place)
    for (first, ready), places in kinds.items():
        for start in range(0, len(places), AT_ONCE):
            some = places[start : start + AT_ONCE]
            chosen = [slots[place] for place in some]
            if ready and isinstance(arena, QuantizedArena):
                leaving = Leaving(codec, shape, _bytes_of(codec, shape, arena.codes(chosen)), None)
            else:
                leaving = Leaving(
                    codec, shape, *encode_blocks(codec, shape, arena.read_blocks(chosen), first)
                )
            found.update({place: partial(leaving.row, row) for row, place in enumerate(some)})
    return [found[place] for place in range(len(slots))]


@dataclass(frozen=True, slots=True)
class Sent:
    """A block's bytes on the arena's device, uint8 [bytes], not compressed; else as `Encoded`."""

    codec: "BlockCodec"
    data: Tensor
    first: bool


def place_blocks(
    arena: Arena, shape: BlockShape, slots: Sequence[int], blocks: Sequence[Encoded | Sent]
) -> None:
    """Fill `slots` with blocks of any codec, all on the host or all on the device."""
    alike: dict[tuple[BlockCodec, bool], list[int]] = {}
    for number, block in enumerate(blocks):
        alike.setdefault((block.codec, block.first), []).append(number)
    for (codec, first), numbers in alike.items():
        recoded = isinstance(arena, QuantizedArena) and (first or arena.codec != codec)
        most = RAW_AT_ONCE if recoded else AT_ONCE
        for start in range(0, len(numbers), most):
            some = numbers[start : start + most]
            _place(arena, shape, [slots[number] for number in some], [blocks[number] for number in some])


def _place(arena: Arena, shape: BlockShape, slots: list[int], blocks: Sequence[Encoded | Sent]) -> None:
    """Blocks of one codec that all begin a prompt, or none."""
    codec, first = blocks[0].codec, blocks[0].first
    encoded = [block for block in blocks if isinstance(block, Encoded)]
    if codec.compressed:
        arena.write_blocks(slots, stack([block.decode(shape) for block in encoded]))
    else:
        if encoded:
            data = _staged([block.data for block in encoded], arena.device)
        else:
            data = torch.stack([block.data for block in blocks if isinstance(block, Sent)])
        if isinstance(arena, QuantizedArena):
            if codec == arena.codec and not first:
                arena.put_codes(slots, codes_in(codec, shape, data))
                return
        elif arena.kernels and not first and _expandable(codec, shape):
            _expand(arena, slots, codes_in(codec, shape, data))
            return
        arena.write_blocks(slots, decode_blocks(codec, shape, data, first, arena.dtype))
    if isinstance(arena, QuantizedArena) and not first:
        arena.squeeze(slots)


def codes_in(codec: "BlockCodec", shape: BlockShape, data: Tensor) -> list[QuantizedBlocks]:
    """Views of blocks uint8 [n, bytes], none of which begins a prompt: by stack, [layers, n, ...]."""
    tensors = tensors_of(codec, shape, data, False)
    found = []
    for each in stacks(codec, shape):
        parts = (tensors.get(name + each.suffix) for name in NAMES)
        found.append(QuantizedBlocks(*(None if part is None else part.transpose(0, 1) for part in parts)))  # type: ignore[arg-type]
    return found


def _bytes_of(codec: "BlockCodec", shape: BlockShape, codes: Sequence[QuantizedBlocks]) -> Tensor:
    """Inverse of `codes_in`."""
    named = {}
    for each, blocks in zip(stacks(codec, shape), codes, strict=True):
        names = [part.name for part in each.codec.parts(each.group, shape.block_size, "F16", False)]
        ordered = (name for name in NAMES if name in names)
        for name, tensor in zip(ordered, blocks.tensors(), strict=True):
            named[name + each.suffix] = tensor.transpose(0, 1).flatten(1).view(torch.uint8)
    return torch.cat([named[part.name] for part in block_parts(codec, shape, False)], 1)


def _expandable(codec: "BlockCodec", shape: BlockShape) -> bool:
    """Whether the kernel takes such blocks; the codec restores all others."""
    size = shape.block_size
    even = all(group.key_dim % 2 == group.value_dim % 2 == 0 for group in shape.groups)
    few = isinstance(codec, Quantized) and {codec.keys.bits, codec.values.bits} <= {8, 4}
    return few and even and size >= 16 and size & (size - 1) == 0


def _expand(arena: Arena, slots: list[int], codes: Sequence[QuantizedBlocks]) -> None:
    """Restore codes in raw slots: one launch for keys and one for values of all layers of one shape."""
    from kvtool.engine.compute.kernels.squeeze import expand

    arena.arrivals.wait(slots)
    sources = torch.arange(len(slots), device=arena.device)
    targets = upload(torch.tensor(slots), arena.device)
    for (keys, values), blocks in zip(arena.stacks, codes, strict=True):
        expand(blocks.map(Tensor.contiguous), sources, keys, values, targets)


def _staged(data: Sequence[Bytes], device: torch.device) -> Tensor:
    """uint8 [n, bytes] on `device`, by way of page-locked memory where that is a GPU."""
    rows = torch.empty((len(data), len(data[0])), dtype=torch.uint8, pin_memory=device.type == "cuda")
    for row, each in zip(rows.numpy(), data, strict=True):
        row[:] = np.frombuffer(each, np.uint8)
    return rows.to(device, non_blocking=True)


def stack(blocks: Sequence[Block]) -> Blocks:
    """Blocks -> per layer keys and values with a leading axis."""
    return [
        (torch.stack([keys for keys, _ in layer]), torch.stack([values for _, values in layer]))
        for layer in zip(*blocks, strict=True)
    ]
