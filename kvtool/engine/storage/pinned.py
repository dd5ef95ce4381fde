"""The host tier beside a GPU: page-locked memory with whole blocks in one piece, copied beside the compute.

A slot holds a block as the codec `raw` stores it. On its way down a block is packed on the device and copied
in one piece, behind the compute, at the bus's full rate. On its way up it comes layer by layer, so that a
prefill that reads it begins when the first layer is there (`compute/arrivals.py`).
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from kvtool.engine.compute.arena import Arena
from kvtool.engine.storage.codec import decode_block, encode_block
from kvtool.engine.storage.coded import Encoded
from kvtool.engine.storage.lanes import Lanes, LastUse, lanes_of
from kvtool.engine.storage.layout import BlockShape
from kvtool.engine.storage.lifting import lift_layers

if TYPE_CHECKING:
    from kvtool.engine.storage.codec import BlockCodec

AT_ONCE = 64
"""Blocks that are packed for one round of copies: bounds the device memory that it takes."""


class PinnedHost:
    """Slots of a block each in page-locked memory, or in plain memory for an arena on the CPU.

    codec: `raw`. lanes: the device's, but for tests of their order.
    """

    def __init__(
        self,
        device: Arena,
        slots: int,
        shape: BlockShape,
        codec: "BlockCodec",
        lanes: Lanes | None = None,
    ) -> None:
        self._shape = shape
        self._codec = codec
        elements = device.block_bytes // device.dtype.itemsize
        pinned = device.device.type == "cuda"
        self._memory = torch.empty((slots, elements), dtype=device.dtype, pin_memory=pinned)
        self._lanes = lanes or lanes_of(device.device)
        self._written = LastUse()
        self._read = LastUse()

    def keep(
        self, device: Arena, sources: Sequence[int], slots: Sequence[int], firsts: Sequence[bool]
    ) -> None:
        """The device's slots may be written again at once: they are packed before anything that follows."""
        for some, targets in _rounds(sources, slots):
            packed = device.pack(some)

            def copy(packed: Tensor = packed, targets: Sequence[int] = targets) -> None:
                for number, slot in enumerate(targets):
                    self._memory[slot].copy_(packed[number], non_blocking=True)

            after = [self._lanes.mark(), *self._read.of(targets)]
            self._written.note(targets, self._lanes.out.run(copy, after, [packed]))

    def put(self, slot: int, block: Encoded) -> None:
        """Decoded at once: it is read as it is."""
        self._settle(slot, self._written, self._read)
        if block.raw:
            self._memory[slot].view(torch.uint8).numpy()[:] = np.frombuffer(block.data, np.uint8)
            return
        for here, there in zip(self._block(slot), block.decode(self._shape), strict=True):
            for ours, theirs in zip(here, there, strict=True):
                ours.copy_(theirs)

    def bring(self, device: Arena, slots: Sequence[int], targets: Sequence[int]) -> None:
        """What the device does next with the blocks waits for them, layer by layer."""
        after = [self._lanes.mark(), *self._written.of(slots)]
        layers = lift_layers(device, self._shape, self._memory, slots, targets, self._lanes, after)
        self._read.note(slots, layers[-1])

    def holds(self, slot: int) -> bool:
        """Always."""
        return True

    def encoded(self, slot: int, first: bool) -> Encoded:
        """Its elements, unchanged."""
        self._settle(slot, self._written)
        return Encoded(self._codec, encode_block(self._codec, self._shape, self._block(slot), first), first)

    def _block(self, slot: int) -> list[tuple[Tensor, Tensor]]:
        """Views by layer."""
        data = memoryview(self._memory[slot].view(torch.uint8).numpy())  # type: ignore[arg-type]
        return list(decode_block(self._codec, self._shape, data, False))

    def _settle(self, slot: int, *uses: LastUse) -> None:
        """Before the CPU touches a slot."""
        for use in uses:
            for event in use.of([slot]):
                event.synchronize()


def _rounds(left: Sequence[int], right: Sequence[int]) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    for start in range(0, len(left), AT_ONCE):
        yield left[start : start + AT_ONCE], right[start : start + AT_ONCE]
