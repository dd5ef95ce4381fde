"""int8: keys per channel over the block's tokens, values per token and head, both symmetric.

Keys have outlier channels that keep their place from token to token, values do not; hence the two
directions (KIVI, Liu et al. 2024). At head_dim 64 and 32 tokens a block: 8.375 bits per element.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvtool.engine.storage.layout import LayerGroup, Part
from kvtool.errors import KvtoolError

LEVELS = 127.0
"""Codes run from -127 to 127: -128 would break the symmetry."""


@dataclass(frozen=True)
class Int8:
    """Parts: codes `keys`, `values` [layers, tokens, heads, dim] int8, and their scales in fp16.

    `key_scales` [layers, heads, dim], `value_scales` [layers, tokens, heads]. In the first block of a
    prompt token 0 is kept apart in the arena's dtype: `sink_keys`, `sink_values` [layers, heads, dim].
    An element is restored to within half its scale.
    """

    name = "int8"

    def config(self) -> dict[str, Any]:
        """No settings."""
        return {"codec": self.name}

    def parts(self, group: LayerGroup, tokens: int, dtype: str, first: bool) -> list[Part]:
        """Codes, scales, and the sink where there is one."""
        layers, heads = group.layers, group.kv_heads
        coded = tokens - first
        parts = [
            Part("key_scales", "F16", (layers, heads, group.key_dim)),
            Part("value_scales", "F16", (layers, coded, heads)),
            Part("keys", "I8", (layers, coded, heads, group.key_dim)),
            Part("values", "I8", (layers, coded, heads, group.value_dim)),
        ]
        if first:
            parts.append(Part("sink_keys", dtype, (layers, heads, group.key_dim)))
            parts.append(Part("sink_values", dtype, (layers, heads, group.value_dim)))
        return parts

    def encode(self, keys: Tensor, values: Tensor, first: bool) -> dict[str, Tensor]:
        """Round to the nearest code, ties to even."""
        parts = {}
        if first:
            parts = {"sink_keys": keys[:, 0], "sink_values": values[:, 0]}
            keys, values = keys[:, 1:], values[:, 1:]
        key_scales = _scales(keys.float(), dim=1)
        value_scales = _scales(values.float(), dim=3)
        parts["key_scales"] = key_scales.squeeze(1)
        parts["value_scales"] = value_scales.squeeze(3)
        parts["keys"] = _codes(keys.float(), key_scales)
        parts["values"] = _codes(values.float(), value_scales)
        return parts

    def decode(self, parts: Mapping[str, Tensor], first: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Code times scale in fp32, then `dtype`; the sink as it was."""
        keys = _restore(parts["keys"], parts["key_scales"].unsqueeze(1), dtype)
        values = _restore(parts["values"], parts["value_scales"].unsqueeze(3), dtype)
        if first:
            keys = torch.cat([parts["sink_keys"].unsqueeze(1).to(dtype), keys], dim=1)
            values = torch.cat([parts["sink_values"].unsqueeze(1).to(dtype), values], dim=1)
        return keys, values


def _scales(tensor: Tensor, dim: int) -> Tensor:
    """fp16 scales, rounded up so that the largest element needs no clipping; 0 where all are 0."""
    exact = tensor.abs().amax(dim=dim, keepdim=True) / LEVELS
    scales = exact.half()
    next_up = (scales.view(torch.int16) + 1).view(torch.float16)
    scales = torch.where(scales.float() < exact, next_up, scales)
    if not bool(torch.isfinite(scales).all()):
        raise KvtoolError("int8: an element is too large for an fp16 scale", "use --codec raw")
    return scales


def _codes(tensor: Tensor, scales: Tensor) -> Tensor:
    wide = scales.float()
    safe = torch.where(wide == 0, torch.ones_like(wide), wide)
    return torch.round(tensor / safe).clamp_(-LEVELS, LEVELS).to(torch.int8)


def _restore(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """A scale that was rounded up can lift fp16's largest numbers over its edge, hence the clamp."""
    edge = torch.finfo(dtype).max
    return (codes.float() * scales.float()).clamp_(-edge, edge).to(dtype)


CODEC = Int8
