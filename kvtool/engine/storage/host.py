"""The host tier's memory: blocks as the arena has them, or encoded by a codec so that more of them fit."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import torch

from kvtool.engine.compute.arena import Arena
from kvtool.engine.storage.codec import encode_block
from kvtool.engine.storage.coded import Encoded, encode_from, place_blocks
from kvtool.engine.storage.layout import BlockShape
from kvtool.errors import KvtoolError

if TYPE_CHECKING:
    from kvtool.engine.storage.codec import BlockCodec

log = logging.getLogger("kvtool.serve")


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

    def holds(self, slot: int) -> bool:
        """Whether a slot that was filled has its block: one that could not be encoded is not kept."""
        ...

    def encoded(self, slot: int, first: bool) -> Encoded:
        """A block as it goes to disk. KvtoolError if the slot does not hold it."""
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
        if block.raw:
            self._arena.put_bytes(slot, block.data)
        else:
            self._arena.write_block(slot, block.decode(self._shape))

    def bring(self, device: Arena, slots: Sequence[int], targets: Sequence[int]) -> None:
        """One copy a layer."""
        device.copy_from(self._arena, slots, targets)

    def holds(self, slot: int) -> bool:
        """Always."""
        return True

    def encoded(self, slot: int, first: bool) -> Encoded:
        """Its elements, unchanged."""
        if self._codec.name == "raw":
            same = self._arena.bytes_of(slot)
            if torch.from_numpy(same).view(self._arena.dtype).isfinite().all():
                return Encoded(self._codec, same.data, first)
        data = encode_block(self._codec, self._shape, self._arena.read_block(slot), first)
        return Encoded(self._codec, data, first)


class EncodedHost:
    """Bytes by slot. A block is encoded once, when it leaves the device, and decoded on its way back; bytes
    that were encoded before (a shard's, the disk's) are kept as they are."""

    def __init__(self, shape: BlockShape, codec: "BlockCodec") -> None:
        self._shape = shape
        self._codec = codec
        self._blocks: dict[int, Encoded] = {}
        self._leaving: list[tuple[int, Callable[[], bytes], bool]] = []

    def keep(
        self, device: Arena, sources: Sequence[int], slots: Sequence[int], firsts: Sequence[bool]
    ) -> None:
        """Encoded on the device, or copied if it has the codec's bytes. They arrive beside the next step."""
        self._settle()
        made = encode_from(device, self._codec, self._shape, sources, firsts)
        self._leaving = list(zip(slots, made, firsts, strict=True))

    def put(self, slot: int, block: Encoded) -> None:
        """Keep the bytes."""
        self._settle()
        self._blocks[slot] = replace(block, data=bytearray(block.data))  # without the rest of its buffer

    def bring(self, device: Arena, slots: Sequence[int], targets: Sequence[int]) -> None:
        """Decoded on the device, unless that is how it keeps them."""
        self._settle()
        place_blocks(device, self._shape, targets, [self._blocks[slot] for slot in slots])

    def holds(self, slot: int) -> bool:
        """Whether its bytes are here."""
        self._settle()
        return slot in self._blocks

    def encoded(self, slot: int, first: bool) -> Encoded:
        """The bytes that it has."""
        if not self.holds(slot):
            raise KvtoolError("the block could not be encoded")
        return self._blocks[slot]

    def _settle(self) -> None:
        """Take in what has left the device since."""
        for slot, data, first in self._leaving:
            try:
                self._blocks[slot] = Encoded(self._codec, data(), first)
            except KvtoolError as error:  # keys or values that the codec cannot hold
                self._blocks.pop(slot, None)
                log.warning("a block could not be encoded and is dropped: %s", error)
        self._leaving = []
