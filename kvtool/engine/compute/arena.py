"""The arena: the tensors behind the pool's slots.

Per layer a key and a value tensor [slots, block_size, kv_heads, head_dim], so that blocks in
consecutive slots are one stretch of tokens that attention reads in place. A block is the same slot in
all of them; whole blocks are moved many at a time, one copy a layer. Keys are stored after RoPE, in
the model's dtype. Device blocks that stay quantized are another arena (`quantized_arena.py`).
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvtool.engine.compute.arrivals import Arrivals
from kvtool.engine.compute.device import upload
from kvtool.engine.compute.kernels.layers import LayerBlocks
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.reads import Keys, Span

LONG = 4
"""Blocks of a stretch from which it is copied by itself, on a CPU."""

Block = list[tuple[Tensor, Tensor]]
"""One block: per layer (key [block_size, kv_heads, key_dim], value [block_size, kv_heads, value_dim])."""

Blocks = list[tuple[Tensor, Tensor]]
"""n blocks: per layer key and value, [n, block_size, kv_heads, key_dim or value_dim]."""


class Arena:
    """KV tensors of `slots` blocks for one model. Contents of a slot are undefined until written."""

    in_place = True
    """Whether every block lies in `keys` and `values`, at its slot."""

    def __init__(self, model: Model, slots: int, block_size: int, device: str | None = None) -> None:
        """`device` defaults to the model's; a host tier's arena says "cpu"."""
        self.slots = slots
        self.block_size = block_size
        self.device = torch.device(device) if device else model.device
        self.dtype = model.dtype
        self.kernels = self.device.type == "cuda"
        """Whether whole blocks are coded and restored by the Triton kernels."""
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.stacks: list[tuple[Tensor, Tensor]] = []
        """The same memory: keys and values of consecutive layers of one shape, [layers, slots, ...]."""
        for (heads, *widths), same in groupby(model.config.layer_shapes):
            leading = (len(list(same)), slots, block_size, heads)
            keys, values = (
                torch.empty((*leading, width), dtype=self.dtype, device=self.device) for width in widths
            )
            self.stacks.append((keys, values))
            self.keys.extend(keys.unbind(0))
            self.values.extend(values.unbind(0))
        self._bytes: list[NDArray[np.uint8]] = []
        if self.device.type == "cpu":
            tensors = (tensor for pair in self.stacks for tensor in pair)
            self._bytes = [tensor.flatten(2).view(torch.uint8).numpy() for tensor in tensors]
        self.block_bytes = block_bytes(model, block_size)
        """Bytes of a block, keys and values of all layers."""
        self.arrivals = Arrivals()
        """Blocks that a copy stream is bringing."""
        self._scratch = [torch.empty(0, dtype=self.dtype, device=self.device) for _ in range(2)]

    def begin(self, spans: list[Span]) -> list[Span]:
        """Before a step that computes `spans`: the same with block tables as attention reads them."""
        return spans

    def layer(self, number: int) -> LayerBlocks:
        """A layer as the kernels read it."""
        return LayerBlocks(self.keys[number], self.values[number])

    def read_blocks(self, slots: Sequence[int]) -> Blocks:
        """Copies of the blocks in `slots`, on the arena's device."""
        self.arrivals.wait(slots)
        index = torch.as_tensor(slots, device=self.device)
        return [
            (key.index_select(0, index), value.index_select(0, index))
            for key, value in zip(self.keys, self.values, strict=True)
        ]

    def write_blocks(self, slots: Sequence[int], blocks: Blocks) -> None:
        """Fill `slots` from tensors of any device; their dtype must be the arena's."""
        self.arrivals.wait(slots)
        index = torch.as_tensor(slots, device=self.device)
        for key, value, (new_key, new_value) in zip(self.keys, self.values, blocks, strict=True):
            key.index_copy_(0, index, new_key.to(self.device))
            value.index_copy_(0, index, new_value.to(self.device))

    def pack(self, slots: Sequence[int]) -> Tensor:
        """Copies of the blocks in `slots`, each in one piece, as the codec `raw` stores it: [n, elements]."""
        self.arrivals.wait(slots)
        index = upload(torch.as_tensor(slots), self.device)
        parts = [
            tensor.index_select(1, index).transpose(0, 1).flatten(1)
            for pair in self.stacks
            for tensor in pair
        ]
        return torch.cat(parts, 1)

    def lift(
        self, layer: int, memory: Tensor, sources: Tensor, starts: tuple[int, int], targets: Tensor
    ) -> None:
        """One layer of blocks from host memory into slots `targets`; see `kernels/lift.py`."""
        if self.kernels:
            from kvtool.engine.compute.kernels.lift import lift
        else:
            from kvtool.engine.compute.kernels.lift import lift_reference as lift
        lift(memory, sources, starts, self.keys[layer], self.values[layer], targets)

    def read_block(self, slot: int) -> Block:
        """A copy of one block, on the arena's device."""
        self.arrivals.wait([slot])
        pairs = zip(self.keys, self.values, strict=True)
        return [(key[slot].clone(), value[slot].clone()) for key, value in pairs]

    def write_block(self, slot: int, block: Block) -> None:
        """Fill one slot from tensors of any device and dtype."""
        self.arrivals.wait([slot])
        for key, value, (new_key, new_value) in zip(self.keys, self.values, block, strict=True):
            key[slot].copy_(new_key)
            value[slot].copy_(new_value)

    def bytes_of(self, slot: int) -> NDArray[np.uint8]:
        """A copy of one block as the codec `raw` stores it, on a CPU."""
        return np.concatenate([part[:, slot].ravel() for part in self._bytes])

    def put_bytes(self, slot: int, data: bytes | bytearray | memoryview) -> None:
        """Inverse of `bytes_of`: a call for keys and one for values, during which other threads run."""
        at = 0
        for part in self._bytes:
            layers, _, size = part.shape
            part[:, slot] = np.frombuffer(data, np.uint8, layers * size, at).reshape(layers, size)
            at += layers * size

    def copy_from(self, other: "Arena", theirs: Sequence[int], ours: Sequence[int]) -> None:
        """Copy blocks `theirs` of another tier's arena of the same model into our slots `ours`."""
        assert self.block_size == other.block_size and len(theirs) == len(ours)
        if other is self or self.device.type != "cpu" or other.device.type != "cpu":
            self.write_blocks(ours, other.read_blocks(theirs))
            return
        pairs = list(zip(self.keys + self.values, other.keys + other.values, strict=True))
        stretches = list(_stretches(ours, theirs))
        if len(ours) < LONG * len(stretches):  # a call for each takes longer than a copy between the two
            into, out_of = torch.tensor(ours), torch.tensor(theirs)
            for here, there in pairs:
                here.index_copy_(0, into, there.index_select(0, out_of))
            return
        for first, source, length in stretches:
            for here, there in pairs:
                here[first : first + length].copy_(there[source : source + length])

    def read_tokens(self, layer: int, keys: Keys) -> tuple[Tensor, Tensor]:
        """Keys [kv_heads, n, key_dim] and values [kv_heads, n, value_dim] of tokens: views, if in place.

        Gathered ones live in scratch memory and are valid until the next gather.
        """
        found = []
        for number, tensor in enumerate((self.keys[layer], self.values[layer])):
            if keys.gather is not None:
                tensor = self._gathered(number, tensor, keys.gather)
            found.append(tensor.flatten(0, 1)[keys.first : keys.last].transpose(0, 1))
        return found[0], found[1]

    def _gathered(self, number: int, tensor: Tensor, slots: Tensor) -> Tensor:
        """Blocks in `slots`. Memory is kept: fresh pages cost more than the copy."""
        shape = (len(slots), *tensor.shape[1:])
        size = shape[0] * shape[1] * shape[2] * shape[3]
        if self._scratch[number].numel() < size:
            self._scratch[number] = torch.empty(size, dtype=self.dtype, device=self.device)
        return torch.index_select(tensor, 0, slots, out=self._scratch[number][:size].view(shape))


def _stretches(ours: Sequence[int], theirs: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first of ours, first of theirs, length) of the pairs that follow each other in both."""
    begin = 0
    for at in range(1, len(ours) + 1):
        if at == len(ours) or ours[at] != ours[at - 1] + 1 or theirs[at] != theirs[at - 1] + 1:
            yield ours[begin], theirs[begin], at - begin
            begin = at


def block_bytes(model: Model, block_size: int) -> int:
    """Bytes that one block of the model takes in an arena."""
    elements = sum(layer.kv_heads * (layer.key_dim + layer.value_dim) for layer in model.config.layers)
    return elements * block_size * model.dtype.itemsize
