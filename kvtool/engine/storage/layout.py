"""Shapes and element types of stored blocks: what a shard says about its bytes, without torch."""

from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I8": 1, "U8": 1}
"""Bytes per element of the safetensors types that codecs use."""

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""An arena's element type by torch's name -> safetensors' name."""


@dataclass(frozen=True, slots=True)
class Part:
    """One named array of an encoded block; `dtype` is a safetensors name."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes, exactly."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Consecutive layers of one shape. Keys are [layers, tokens, kv_heads, key_dim], values likewise."""

    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int

    def elements(self, tokens: int) -> int:
        """Numbers that `tokens` tokens hold in these layers, keys and values."""
        return self.layers * tokens * self.kv_heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What one block holds: `block_size` tokens of every layer, elements of `dtype` (torch's name)."""

    block_size: int
    dtype: str
    groups: tuple[LayerGroup, ...]

    @classmethod
    def of_layers(cls, block_size: int, dtype: str, layers: list[tuple[int, int, int]]) -> "BlockShape":
        """From (kv_heads, key_dim, value_dim) of each layer, in order."""
        groups = tuple(LayerGroup(len(list(same)), *shape) for shape, same in groupby(layers))
        return cls(block_size, dtype, groups)

    @property
    def elements(self) -> int:
        """Numbers in a block, keys and values of all layers."""
        return sum(group.elements(self.block_size) for group in self.groups)

    def to_json(self) -> dict[str, Any]:
        """As the manifest keeps it."""
        return {
            "block_size": self.block_size,
            "dtype": self.dtype,
            "layers": [
                [group.layers, group.kv_heads, group.key_dim, group.value_dim] for group in self.groups
            ],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "BlockShape":
        """Inverse of `to_json`; KeyError, TypeError or ValueError on anything else."""
        if data["dtype"] not in DTYPES:
            raise ValueError(f"dtype {data['dtype']!r} is none of {', '.join(DTYPES)}")
        groups = tuple(LayerGroup(*map(int, row)) for row in data["layers"])
        if not groups or min(int(number) for row in data["layers"] for number in row) < 1:
            raise ValueError(f"layers {data['layers']!r} hold nothing")
        return cls(int(data["block_size"]), data["dtype"], groups)
