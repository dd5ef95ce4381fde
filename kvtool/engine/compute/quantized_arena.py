"""An arena whose full blocks stay quantized: a slot has room for a codec's codes, and few blocks are raw.

Raw are the blocks that are being filled and, as long as they are used, the first ones of prompts, whose
attention sink must stay exact. A raw block holds one of `raw_slots`; when those run out, what was used
longest ago is squeezed too. Block tables name a raw block by its raw slot, a quantized one by `raw_slots` +
its slot. Codes and grids are the codec's own bytes: blocks move between tiers as they are.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from kvtool.engine.compute.arena import Arena, Block, Blocks
from kvtool.engine.compute.device import upload
from kvtool.engine.compute.kernels.layers import LayerBlocks, QuantizedBlocks, empty_blocks
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.reads import Keys, Span
from kvtool.engine.storage.layout import LayerGroup
from kvtool.engine.storage.quantized import Quantized

FARTHEST = 2e4
"""Larger numbers are clipped: every codec's steps reach that far, rotated or not."""

NAMES = ("keys", "key_steps", "key_offsets", "values", "value_steps", "value_offsets")
"""A codec's names of the fields of `QuantizedBlocks`."""


class QuantizedArena(Arena):
    """`slots` blocks in `codec`, of which at most `raw_slots` are raw.

    block_size: a power of two, 16 or more. kernels: squeeze by the Triton kernel, as on a GPU; the codec does
    it elsewhere.
    """

    in_place = False

    def __init__(
        self,
        model: Model,
        slots: int,
        block_size: int,
        codec: Quantized,
        raw_slots: int,
        kernels: bool | None = None,
    ) -> None:
        super().__init__(model, raw_slots, block_size)
        self.slots = slots
        self.raw_slots = raw_slots
        self.codec = codec
        self.kernels = self.kernels if kernels is None else kernels
        bits = codec.keys.bits, codec.values.bits
        self.quantized = [
            empty_blocks(
                (len(keys), slots, *keys.shape[2:4]), keys.shape[4], values.shape[4], bits, self.device
            )
            for keys, values in self.stacks
        ]
        """By stack, of all its layers."""
        self._layers = [
            (number, layer) for number, (keys, _) in enumerate(self.stacks) for layer in range(len(keys))
        ]
        self._entries = np.arange(raw_slots, raw_slots + slots)
        self._raw: OrderedDict[int, int] = OrderedDict()  # slot -> raw slot, used longest ago first
        self._free = list(range(raw_slots))[::-1]
        self._full: set[int] = set()
        self.crowded_out = 0
        """Blocks that were squeezed before their time, most of them first ones, since raw slots ran out."""

    def begin(self, spans: list[Span]) -> list[Span]:
        """Squeeze what the last step filled, and lend raw slots for what this one writes."""
        self.squeeze([slot for slot in self._full if slot in self._raw])
        written: list[int] = []
        begun: list[int] = []
        for span in spans:
            first, last = span.start // self.block_size, -(-span.end // self.block_size)
            written += span.slots[first:last]
            if span.start % self.block_size:
                begun.append(span.slots[first])
            self._full.update(span.slots[max(first, 1) : span.end // self.block_size])
        self._lend(written, {*written, *(span.slots[0] for span in spans)}, begun)
        return [replace(span, slots=self._entries[np.array(span.slots)].tolist()) for span in spans]

    def layer(self, number: int) -> LayerBlocks:
        """A layer as the kernels read it."""
        stack, place = self._layers[number]
        return LayerBlocks(self.keys[number], self.values[number], self.quantized[stack].layer(place))

    def read_tokens(self, layer: int, keys: Keys) -> tuple[Tensor, Tensor]:
        """As of any arena; quantized blocks are restored for each read."""
        start = 0 if keys.gather is not None else keys.first // self.block_size
        entries = torch.arange(start, -(-keys.last // self.block_size), device=self.device)
        entries = entries if keys.gather is None else keys.gather
        if not bool((entries >= self.raw_slots).any()):
            return super().read_tokens(layer, keys)
        stack, place = self._layers[layer]
        blocks = self.quantized[stack].layer(place)
        coded = torch.nonzero(entries >= self.raw_slots)[:, 0]
        raw = torch.nonzero(entries < self.raw_slots)[:, 0]
        found = []
        for restored, tensor in zip(
            self._restored(stack, _select(blocks, 0, entries[coded] - self.raw_slots)),
            (self.keys[layer], self.values[layer]),
            strict=True,
        ):
            every = tensor.new_empty((len(entries), *tensor.shape[1:]))
            every.index_copy_(0, coded, restored)
            every.index_copy_(0, raw, tensor.index_select(0, entries[raw]))
            tokens = every.flatten(0, 1)[keys.first - start * self.block_size :]
            found.append(tokens[: keys.last - keys.first].transpose(0, 1))
        return found[0], found[1]

    def is_raw(self, slot: int) -> bool:
        """Whether a block is exact."""
        return slot in self._raw

    def read_blocks(self, slots: Sequence[int]) -> Blocks:
        """Copies of the blocks in `slots`, restored where they are quantized."""
        index = upload(torch.from_numpy(self._entries[np.array(slots)]), self.device)
        coded = torch.nonzero(index >= self.raw_slots)[:, 0]
        raw = torch.nonzero(index < self.raw_slots)[:, 0]
        blocks: Blocks = []
        for number, pair in enumerate(self.stacks):
            chosen = _select(self.quantized[number], 1, index[coded] - self.raw_slots)
            sides = []
            for tensor, restored in zip(pair, self._restored(number, _flat(chosen)), strict=True):
                every = tensor.new_empty((len(tensor), len(slots), *tensor.shape[2:]))
                every.index_copy_(1, coded, restored.view(len(tensor), len(coded), *restored.shape[1:]))
                every.index_copy_(1, raw, tensor.index_select(1, index[raw]))
                sides.append(every.unbind(0))
            blocks.extend(zip(*sides, strict=True))
        return blocks

    def write_blocks(self, slots: Sequence[int], blocks: Blocks) -> None:
        """Fill `slots`, which are raw until `squeeze`; no more at once than there are raw slots to spare."""
        self._lend(slots, set(slots), ())
        self._full.difference_update(slots)
        super().write_blocks([self._raw[slot] for slot in slots], blocks)

    def read_block(self, slot: int) -> Block:
        """A copy of one block, restored if it is quantized."""
        return [(keys[0], values[0]) for keys, values in self.read_blocks([slot])]

    def write_block(self, slot: int, block: Block) -> None:
        """Fill one slot, raw."""
        wanted = self.dtype
        self.write_blocks(
            [slot], [(keys[None].to(wanted), values[None].to(wanted)) for keys, values in block]
        )

    def codes(self, slots: Sequence[int]) -> list[QuantizedBlocks]:
        """Copies of the codes and grids of quantized blocks, by stack, [layers, n, ...]."""
        assert not any(slot in self._raw for slot in slots)
        index = upload(torch.as_tensor(slots), self.device)
        return [_select(blocks, 1, index) for blocks in self.quantized]

    def put_codes(self, slots: Sequence[int], codes: Sequence[QuantizedBlocks]) -> None:
        """Fill `slots` with what `codes` gave, on the arena's device."""
        index = upload(torch.as_tensor(slots), self.device)
        for ours, theirs in zip(self.quantized, codes, strict=True):
            for tensor, new in zip(ours.tensors(), theirs.tensors(), strict=True):
                tensor.index_copy_(1, index, new)
        self._give_back(slots)

    def squeeze(self, slots: Sequence[int]) -> None:
        """Quantize raw blocks; others stay as they are."""
        slots = [slot for slot in slots if slot in self._raw]
        if not slots:
            return
        sources = upload(torch.tensor([self._raw[slot] for slot in slots]), self.device)
        targets = upload(torch.tensor(slots), self.device)
        for (keys, values), blocks in zip(self.stacks, self.quantized, strict=True):
            if self.kernels:
                from kvtool.engine.compute.kernels.squeeze import squeeze

                squeeze(keys, values, sources, blocks, targets)
                continue
            numbers = [tensor.index_select(1, sources).flatten(0, 1).float() for tensor in (keys, values)]
            for each in numbers:
                each.nan_to_num_(0.0).clamp_(-FARTHEST, FARTHEST)
            parts = self.codec.encode(numbers[0], numbers[1], False)
            made = (parts[name] for name in NAMES if name in parts)
            for tensor, new in zip(blocks.tensors(), made, strict=True):
                tensor.index_copy_(1, targets, new.view(len(keys), len(slots), *new.shape[1:]))
        self._give_back(slots)

    def _lend(self, slots: Sequence[int], used: set[int], begun: Iterable[int]) -> None:
        """Make `slots` raw, squeezing none of `used`; `begun` hold something already."""
        for slot in used:
            if slot in self._raw:
                self._raw.move_to_end(slot)
        needed = [slot for slot in dict.fromkeys(slots) if slot not in self._raw]
        again = [slot for slot in begun if slot not in self._raw]  # its last token came long ago
        restored = self.read_blocks(again) if again else []
        short = len(needed) - len(self._free)
        if short > 0:
            victims = list(self._raw)[:short]
            assert len(victims) == short and used.isdisjoint(victims), "too few raw slots for one step"
            self.squeeze(victims)
            self.crowded_out += short
        for slot in needed:
            self._raw[slot] = self._entries[slot] = self._free.pop()
        if again:
            super().write_blocks([self._raw[slot] for slot in again], restored)

    def _give_back(self, slots: Iterable[int]) -> None:
        """`slots` are quantized now."""
        for slot in slots:
            self._full.discard(slot)
            if slot in self._raw:
                self._free.append(self._raw.pop(slot))
                self._entries[slot] = self.raw_slots + slot

    def _restored(self, stack: int, blocks: QuantizedBlocks) -> tuple[Tensor, Tensor]:
        """Keys and values [n, block_size, heads, dim] of [n, ...] blocks of a stack's layers."""
        keys, values = self.stacks[stack]
        group = LayerGroup(len(keys), keys.shape[3], keys.shape[4], values.shape[4])
        fields = zip(NAMES, blocks.fields(), strict=True)
        parts = {name: part for name, part in fields if part is not None}
        return self.codec.decode(parts, group, False, self.dtype)


def _select(blocks: QuantizedBlocks, axis: int, index: Tensor) -> QuantizedBlocks:
    return blocks.map(lambda tensor: tensor.index_select(axis, index))


def _flat(blocks: QuantizedBlocks) -> QuantizedBlocks:
    """Layers and blocks as one axis."""
    return blocks.map(lambda tensor: tensor.flatten(0, 1))
