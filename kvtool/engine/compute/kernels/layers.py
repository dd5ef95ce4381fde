"""What the kernels read: one layer's blocks on the device, raw or quantized, behind one block table.

A block table's entry below `raw_slots` names a raw block, one above it a quantized block (entry -
raw_slots). So one sequence can mix both: the block that is being filled is raw, the first one keeps its
attention sink in full precision, and whatever is full can be squeezed in place.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class QuantizedBlocks:
    """Codes and scales of one layer: an element is code * scale + offset.

    key_codes: [slots, block_size, kv_heads, D] int8, or uint8 [..., D / 2] where byte j holds channel j in
    its low and channel j + D / 2 in its high four bits. value_codes likewise with Dv. key_scales and
    key_offsets: [slots, kv_heads, D], one per channel of a block. value_scales and value_offsets: [slots,
    block_size, kv_heads], one per token and head. Offsets belong to 4-bit codes only. 4-bit keys and
    values were rotated by `rotation` before they were quantized.
    """

    key_codes: Tensor
    key_scales: Tensor
    key_offsets: Tensor | None
    value_codes: Tensor
    value_scales: Tensor
    value_offsets: Tensor | None

    @property
    def key_bits(self) -> int:
        """8 or 4."""
        return 8 if self.key_offsets is None else 4

    @property
    def value_bits(self) -> int:
        """8 or 4."""
        return 8 if self.value_offsets is None else 4


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
    keys = codes_of(blocks.key_codes[slot], blocks.key_bits) * blocks.key_scales[slot].float()
    values = (
        codes_of(blocks.value_codes[slot], blocks.value_bits) * blocks.value_scales[slot].float()[..., None]
    )
    if blocks.key_offsets is not None:
        keys = (keys + blocks.key_offsets[slot].float()) @ rotation(keys.shape[-1], keys.device).T
    if blocks.value_offsets is not None:
        values = values + blocks.value_offsets[slot].float()[..., None]
        values = values @ rotation(values.shape[-1], values.device).T
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
