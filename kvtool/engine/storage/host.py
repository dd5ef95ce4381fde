"""The host tier's memory: blocks as the arena has them, or encoded by a codec so that more of them fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch

from kvtool.engine.compute.arena import Arena, Block, Blocks
from kvtool.engine.storage.codec import block_bytes, decode_block, encode_block
from kvtool.engine.storage.layout import BlockShape

if TYPE_CHECKING:
    from kvtool.engine.storage.codec import BlockCodec

AT_ONCE = 64
"""Blocks stacked for one copy a layer: bounds the memory that it takes."""

Bytes = bytes | bytearray | memoryview
"""A block's encoded bytes."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A block's bytes as a codec made them. `first`: it begins a prompt."""

    codec: "BlockCodec"
    data: Bytes
    first: bool

    def decode(self, shape: BlockShape) -> Block:
        """Keys and values by layer, on the CPU, in the arena's dtype; they may be views of `data`."""
        data = bytearray(self.data) if isinstance(self.data, bytes) else self.data
        return list(decode_block(self.codec, shape, data, self.first))


class HostBlocks(Protocol):
    """Slots for blocks that left the device, or are on their way to it."""

    def keep(
        self, device: Arena, sources: Sequence[int], slots: Sequence[int], firsts: Sequence[bool]
    ) -> None:
        """Copy blocks from the device's slots `sources` into `slots`."""
        ...

    def put(self, slot: int, block: Encoded) -> None:
        """Fill a slot with a block from disk."""
        ...

    def bring(self, device: Arena, slots: Sequence[int], targets: Sequence[int]) -> None:
        """Copy blocks from `slots` to the device's slots `targets`."""
        ...

    def encoded(self, slot: int, first: bool) -> Encoded:
        """A block as it goes to disk."""
        ...


class PlainHost:
    """An arena of its own: copies, no arithmetic. `codec` keeps every bit; blocks go to disk through it."""

    def __init__(self, arena: Arena, shape: BlockShape, codec: "BlockCodec") -> None:
        self._arena = arena
        self._shape = shape
        self._codec = codec

    def keep(
        self, device: Arena, sources: Sequence[int], slots: Sequence[int], firsts: Sequence[bool]
    ) -> None:
        """One copy a layer."""
        self._arena.copy_from(device, sources, slots)

    def put(self, slot: int, block: Encoded) -> None:
        """Decoded at once: it is read as it is."""
        self._arena.write_block(slot, block.decode(self._shape))

    def bring(self, device: Arena, slots: Sequence[int], targets: Sequence[int]) -> None:
        """One copy a layer."""
        device.copy_from(self._arena, slots, targets)

    def encoded(self, slot: int, first: bool) -> Encoded:
        """Its elements, unchanged."""
        data = encode_block(self._codec, self._shape, self._arena.read_block(slot), first)
        return Encoded(self._codec, data, first)


class EncodedHost:
    """Bytes by slot. A block is encoded once, when it leaves the device, and decoded on its way back; bytes
    that were encoded before (a shard's, the disk's) are kept as they are."""

    def __init__(self, shape: BlockShape, codec: "BlockCodec") -> None:
        self._shape = shape
        self._codec = codec
        self._blocks: dict[int, Encoded] = {}

    def keep(
        self, device: Arena, sources: Sequence[int], slots: Sequence[int], firsts: Sequence[bool]
    ) -> None:
        """Encode one after the other."""
        for source, slot, first in zip(sources, slots, firsts, strict=True):
            data = encode_block(self._codec, self._shape, device.read_block(source), first)
            self._blocks[slot] = Encoded(self._codec, data, first)

    def put(self, slot: int, block: Encoded) -> None:
        """Keep the bytes."""
        self._blocks[slot] = replace(block, data=bytearray(block.data))  # without the rest of its buffer

    def bring(self, device: Arena, slots: Sequence[int], targets: Sequence[int]) -> None:
        """Decode, then one copy a layer."""
        for start in range(0, len(slots), AT_ONCE):
            some = [self._blocks[slot].decode(self._shape) for slot in slots[start : start + AT_ONCE]]
            device.write_blocks(targets[start : start + AT_ONCE], stack(some))

    def encoded(self, slot: int, first: bool) -> Encoded:
        """The bytes that it has."""
        return self._blocks[slot]


def slot_bytes(codec: "BlockCodec", shape: BlockShape) -> int:
    """Most bytes that a block takes: one that begins a prompt keeps its sink apart."""
    return max(block_bytes(codec, shape, first) for first in (False, True))


def stack(blocks: Sequence[Block]) -> Blocks:
    """Blocks -> per layer keys and values with a leading axis."""
    return [
        (torch.stack([keys for keys, _ in layer]), torch.stack([values for _, values in layer]))
        for layer in zip(*blocks, strict=True)
    ]
