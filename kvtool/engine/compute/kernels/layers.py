"""What the kernels read: one layer's blocks on the device, raw or quantized, behind one block table.

A block table's entry below `raw_slots` names a raw block, one above it a quantized block (entry -
raw_slots). So one sequence can mix both: the block that is being filled is raw, the first one keeps its
attention sink in full precision, and whatever is full can be squeezed in place.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kvtool.engine.storage.grid import step_sizes
from kvtool.engine.storage.quantized import GROUP


@dataclass(frozen=True, slots=True)
class QuantizedBlocks:
    """Codes and grids of a layer as the codecs store them: an element is (code + offset) * step.

    key_codes: [slots, block_size, kv_heads, D] int8, or uint8 [..., D / 2] where byte j holds channel j in
    its low and channel j + D / 2 in its high four bits. key_steps uint8 [slots, groups, kv_heads, D], each
    the upper half of a positive fp16: `groups` equal runs of a block's tokens have grids of their own.
    value_codes like key_codes with Dv; value_steps [slots, block_size, kv_heads, 2], one for each half of a
    head. Offsets, int8 and shaped like the steps, belong to 4-bit codes only. 4-bit keys and values were
    rotated by `rotation` before they were quantized. Layers of one shape may share tensors with one more
    leading axis.
    """

    key_codes: Tensor
    key_steps: Tensor
    key_offsets: Tensor | None
    value_codes: Tensor
    value_steps: Tensor
    value_offsets: Tensor | None

    @property
    def key_bits(self) -> int:
        """8 or 4."""
        return 8 if self.key_offsets is None else 4

    @property
    def value_bits(self) -> int:
        """8 or 4."""
        return 8 if self.value_offsets is None else 4

    def tensors(self) -> list[Tensor]:
        """Those that there are, in order of the fields."""
        return [tensor for tensor in self.fields() if tensor is not None]

    def layer(self, number: int) -> "QuantizedBlocks":
        """One layer of several."""
        return self.map(lambda tensor: tensor[number])

    def map(self, function: Callable[[Tensor], Tensor]) -> "QuantizedBlocks":
        """`function` of every tensor."""
        found = [None if tensor is None else function(tensor) for tensor in self.fields()]
        return QuantizedBlocks(*found)  # type: ignore[arg-type]

    def fields(self) -> list[Tensor | None]:
        """All of them, in order."""
        return [getattr(self, name) for name in self.__slots__]


def empty_blocks(
    shape: tuple[int, ...], width: int, value_width: int, bits: tuple[int, int], device: torch.device
) -> QuantizedBlocks:
    """Undefined blocks. shape: leading axes, slots, block_size, kv_heads; bits: of keys and of values."""
    *leading, block_size, heads = shape
    made: list[Tensor | None] = []
    for each, size, grids in (
        (bits[0], width, (*leading, -(-block_size // GROUP), heads, width)),
        (bits[1], value_width, (*shape, 2)),
    ):
        codes = (*shape, size if each == 8 else size // 2)
        made.append(torch.empty(codes, dtype=torch.int8 if each == 8 else torch.uint8, device=device))
        made.append(torch.empty(grids, dtype=torch.uint8, device=device))
        made.append(None if each == 8 else torch.empty(grids, dtype=torch.int8, device=device))
    return QuantizedBlocks(*made)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class LayerBlocks:
    """keys [raw_slots, block_size, kv_heads, D], values [..., Dv] in the model's dtype, contiguous."""

    keys: Tensor
    values: Tensor
    quantized: QuantizedBlocks | None = None

    @property
    def raw_slots(self) -> int:
        """Entries of a block table from here on name quantized blocks."""
        return self.keys.shape[0]

    def block(self, entry: int) -> tuple[Tensor, Tensor]:
        """Reference: keys [block_size, kv_heads, D] and values of one table entry, as float32."""
        if entry < self.raw_slots:
            return self.keys[entry].float(), self.values[entry].float()
        assert self.quantized is not None
        return dequantize(self.quantized, entry - self.raw_slots)


def dequantize(blocks: QuantizedBlocks, slot: int) -> tuple[Tensor, Tensor]:
    """Reference: keys [block_size, kv_heads, D] and values [..., Dv] as they were, float32."""
    codes = codes_of(blocks.key_codes[slot], blocks.key_bits)
    run = codes.shape[0] // blocks.key_steps.shape[1]
    if blocks.key_offsets is not None:
        codes = codes + blocks.key_offsets[slot].repeat_interleave(run, 0)
    keys = codes * step_sizes(blocks.key_steps[slot]).repeat_interleave(run, 0)
    codes = codes_of(blocks.value_codes[slot], blocks.value_bits)
    half = codes.shape[-1] // 2
    if blocks.value_offsets is not None:
        codes = codes + blocks.value_offsets[slot].repeat_interleave(half, -1)
    values = codes * step_sizes(blocks.value_steps[slot]).repeat_interleave(half, -1)
    if blocks.key_bits == 4:
        keys = keys @ rotation(keys.shape[-1], keys.device)
    if blocks.value_bits == 4:
        values = values @ rotation(values.shape[-1], values.device)
    return keys, values


def codes_of(codes: Tensor, bits: int) -> Tensor:
    """Codes as float32, unpacked along the last dimension if they are of 4 bits."""
    if bits == 8:
        return codes.float()
    return torch.cat([codes & 15, codes >> 4], -1).float()


def pack(codes: Tensor) -> Tensor:
    """4-bit codes [..., D], each 0 to 15, as uint8 [..., D / 2]: the layout of `QuantizedBlocks`."""
    half = codes.shape[-1] // 2
    low, high = codes[..., :half].to(torch.uint8), codes[..., half:].to(torch.uint8)
    return low | (high << 4)


_ROTATIONS: dict[tuple[int, torch.device], Tensor] = {}


def rotation(width: int, device: torch.device) -> Tensor:
    """Orthonormal [width, width]: Hadamard matrices of the largest power of two that divides `width`.

    x @ rotation spreads an outlier channel over its group (QuaRot, Ashkboos et al. 2024); the matrix is
    symmetric, so it is its own inverse.
    """
    key = (width, device)
    if key not in _ROTATIONS:
        size = width & -width
        matrix = torch.ones(1, 1)
        while matrix.shape[0] < size:
            matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
        full = torch.kron(torch.eye(width // size), matrix * size**-0.5)
        _ROTATIONS[key] = full.to(device)
    return _ROTATIONS[key]
