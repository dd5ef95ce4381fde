"""What a codec is, and how a whole block goes through one: tensors in, one run of bytes out.

Layers of one shape travel together (a group), so a codec sees keys [layers, tokens, heads, dim]. A
block's parts are laid one after the other, wider elements first, which keeps every part aligned
within the block without padding.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Protocol

import torch
from torch import Tensor

from kvtool.engine.storage.layout import DTYPES, ITEM_BYTES, BlockShape, LayerGroup, Part
from kvtool.errors import KvtoolError

Block = Sequence[tuple[Tensor, Tensor]]
"""Keys and values of one block, layer by layer, each [block_size, kv_heads, dim] in the arena's dtype."""

TORCH_TYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
    "U8": torch.uint8,
}


class Codec(Protocol):
    """How keys and values are stored. Entries of the registry are frozen dataclasses: fields are config.

    `first` says that the block begins a prompt. Its token 0 is the attention sink: every codec keeps it
    in the arena's dtype and out of its statistics, the cheapest accuracy there is.
    """

    @property
    def name(self) -> str:
        """The registry's name."""
        ...

    def config(self) -> dict[str, Any]:
        """JSON from which `load_codec` makes the same codec: {"codec": name, ...}."""
        ...

    def parts(self, group: LayerGroup, tokens: int, dtype: str, first: bool) -> list[Part]:
        """The arrays that `encode` returns for `tokens` tokens of an arena of `dtype` (safetensors name)."""
        ...

    def encode(self, keys: Tensor, values: Tensor, first: bool) -> dict[str, Tensor]:
        """keys, values: [layers, tokens, kv_heads, dim], finite. Deterministic to the bit."""
        ...

    def decode(self, parts: Mapping[str, Tensor], first: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values in `dtype`, shaped as they went in."""
        ...


def block_parts(codec: Codec, shape: BlockShape, first: bool) -> list[Part]:
    """All arrays of one encoded block in stored order; with several layer groups names end in `.0`, `.1`."""
    parts = []
    for number, group in enumerate(shape.groups):
        suffix = f".{number}" if len(shape.groups) > 1 else ""
        for part in codec.parts(group, shape.block_size, DTYPES[shape.dtype], first):
            parts.append(Part(part.name + suffix, part.dtype, part.shape))
    return sorted(parts, key=lambda part: -ITEM_BYTES[part.dtype])


def block_bytes(codec: Codec, shape: BlockShape, first: bool) -> int:
    """Stored size of one block."""
    return sum(part.nbytes for part in block_parts(codec, shape, first))


def bits_per_element(codec: Codec, shape: BlockShape, first: bool = False) -> float:
    """Stored bits per key or value element, scales included."""
    return 8 * block_bytes(codec, shape, first) / shape.elements


def encode_block(codec: Codec, shape: BlockShape, block: Block, first: bool) -> bytes:
    """One block as it stands in a shard. Infinities and NaNs are refused: they would poison a cache."""
    tensors: dict[str, Tensor] = {}
    layer = 0
    for number, group in enumerate(shape.groups):
        layers = block[layer : layer + group.layers]
        layer += group.layers
        keys = torch.stack([keys for keys, _ in layers])
        values = torch.stack([values for _, values in layers])
        for noun, tensor in (("keys", keys), ("values", values)):
            if not _all_finite(tensor):
                raise KvtoolError(
                    f"the model's {noun} are not finite in {shape.dtype}", "use --dtype float32 or bfloat16"
                )
        suffix = f".{number}" if len(shape.groups) > 1 else ""
        for name, tensor in codec.encode(keys, values, first).items():
            tensors[name + suffix] = tensor
    parts = block_parts(codec, shape, first)
    assert len(tensors) == len(parts)
    return b"".join(_to_bytes(tensors[part.name], part) for part in parts)


def decode_block(codec: Codec, shape: BlockShape, data: bytearray, first: bool) -> Block:
    """Inverse of `encode_block`, on the CPU, in the arena's dtype. `data` must have the block's size.

    The tensors may be views of `data`.
    """
    tensors: dict[str, Tensor] = {}
    at = 0
    for part in block_parts(codec, shape, first):
        tensors[part.name] = torch.frombuffer(
            data, dtype=TORCH_TYPES[part.dtype], count=part.nbytes // ITEM_BYTES[part.dtype], offset=at
        ).reshape(part.shape)
        at += part.nbytes
    assert at == len(data)
    block: list[tuple[Tensor, Tensor]] = []
    dtype = TORCH_TYPES[DTYPES[shape.dtype]]
    for number in range(len(shape.groups)):
        suffix = f".{number}" if len(shape.groups) > 1 else ""
        own = {name.removesuffix(suffix): tensor for name, tensor in tensors.items() if name.endswith(suffix)}
        keys, values = codec.decode(own, first, dtype)
        block.extend(zip(keys, values, strict=True))
    return block


def _all_finite(tensor: Tensor) -> bool:
    """A sum is finite only if all numbers are; the rare sum that overflows is looked at closely."""
    return isfinite(float(tensor.sum(dtype=torch.float32))) or bool(torch.isfinite(tensor).all())


def _to_bytes(tensor: Tensor, part: Part) -> bytes:
    assert tuple(tensor.shape) == part.shape and tensor.dtype == TORCH_TYPES[part.dtype], part
    return tensor.contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes()
