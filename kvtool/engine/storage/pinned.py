"""The host tier beside a GPU: page-locked memory with whole blocks in one piece, copied beside the compute.

In the arena a block lies in as many pieces as there are layers. Here it is one run, so that moving it is
one copy of megabytes at the bus's full rate, and the cutting up is done by the device. All copies go over
one stream of their own; the compute waits for them there and not in Python.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kvtool.engine.compute.arena import Arena, Block
from kvtool.engine.storage.codec import encode_block
from kvtool.engine.storage.coded import Encoded
from kvtool.engine.storage.layout import BlockShape

if TYPE_CHECKING:
    from kvtool.engine.storage.codec import BlockCodec

AT_ONCE = 64
"""Blocks that are packed for one round of copies: bounds the device memory that it takes."""


class PinnedHost:
    """Slots of `block_elements` each in page-locked memory, or in plain memory for an arena on the CPU.

    `codec` keeps every bit; blocks go to disk through it.
    """

    def __init__(self, device: Arena, slots: int, shape: BlockShape, codec: "BlockCodec") -> None:
        self._shape = shape
        self._codec = codec
        self._on_gpu = device.device.type == "cuda"
        self._memory = torch.empty(
            (slots, device.block_bytes // device.dtype.itemsize), dtype=device.dtype, pin_memory=self._on_gpu
        )
        self._stream = torch.cuda.Stream(device.device) if self._on_gpu else None  # type: ignore[no-untyped-call]

    def keep(
        self, device: Arena, sources: Sequence[int], slots: Sequence[int], firsts: Sequence[bool]
    ) -> None:
        """The device's slots may be written again at once: they are packed before anything that follows."""
        for some, targets in _rounds(sources, slots):
            packed = device.pack(some)
            with self._copying(packed):
                for number, slot in enumerate(targets):
                    self._memory[slot].copy_(packed[number], non_blocking=True)

    def put(self, slot: int, block: Encoded) -> None:
        """Decoded at once: it is read as it is."""
        self._settle()
        at = 0
        for pair in block.decode(self._shape):
            for tensor in pair:
                self._memory[slot, at : at + tensor.numel()] = tensor.flatten()
                at += tensor.numel()

    def bring(self, device: Arena, slots: Sequence[int], targets: Sequence[int]) -> None:
        """What the device does next finds the blocks in place."""
        for some, places in _rounds(slots, targets):
            packed = self._memory.new_empty((len(some), self._memory.shape[1]), device=device.device)
            with self._copying(packed):
                for number, slot in enumerate(some):
                    packed[number].copy_(self._memory[slot], non_blocking=True)
            if self._stream is not None:
                torch.cuda.current_stream(device.device).wait_stream(self._stream)
            device.unpack(places, packed)

    def encoded(self, slot: int, first: bool) -> Encoded:
        """Its elements, unchanged."""
        self._settle()
        return Encoded(self._codec, encode_block(self._codec, self._shape, self._block(slot), first), first)

    def _block(self, slot: int) -> Block:
        """Views by layer."""
        block: Block = []
        at = 0
        size = self._shape.block_size
        for group in self._shape.groups:
            for _ in range(group.layers):
                pair = []
                for width in (group.key_dim, group.value_dim):
                    elements = size * group.kv_heads * width
                    flat = self._memory[slot, at : at + elements]
                    pair.append(flat.view(size, group.kv_heads, width))
                    at += elements
                block.append((pair[0], pair[1]))
        return block

    @contextmanager
    def _copying(self, packed: Tensor) -> Iterator[None]:
        """Copies to or from `packed`, after what the compute has queued so far, in the order of the calls."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(packed.device))
        with torch.cuda.stream(self._stream):
            yield
        packed.record_stream(self._stream)

    def _settle(self) -> None:
        """Before the CPU touches the memory."""
        if self._stream is not None:
            self._stream.synchronize()


def _rounds(left: Sequence[int], right: Sequence[int]) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    for start in range(0, len(left), AT_ONCE):
        yield left[start : start + AT_ONCE], right[start : start + AT_ONCE]
