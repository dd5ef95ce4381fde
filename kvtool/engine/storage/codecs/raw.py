"""raw: the arena's elements unchanged. Reuse is exact: fp32 stays fp32, bf16 stays bf16."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from kvtool.engine.storage.layout import LayerGroup, Part


@dataclass(frozen=True)
class Raw:
    """16 bits per element in a 16-bit arena, 32 in fp32. Parts: keys, values [layers, tokens, heads, dim]."""

    name: ClassVar[str] = "raw"
    compressed: ClassVar[bool] = False
    steered: ClassVar[bool] = False

    def config(self) -> dict[str, Any]:
        """No settings."""
        return {"codec": self.name}

    def parts(self, group: LayerGroup, tokens: int, dtype: str, first: bool) -> list[Part]:
        """Keys and values as they are."""
        return [
            Part("keys", dtype, (group.layers, tokens, group.kv_heads, group.key_dim)),
            Part("values", dtype, (group.layers, tokens, group.kv_heads, group.value_dim)),
        ]

    def encode(
        self, keys: Tensor, values: Tensor, first: bool, feedback: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The tensors themselves."""
        return {"keys": keys, "values": values}

    def held(self, keys: Tensor, values: Tensor, parts: Mapping[str, Tensor]) -> Tensor | None:
        """Always."""
        return None

    def decode(
        self,
        parts: Mapping[str, Tensor],
        group: LayerGroup,
        first: bool,
        dtype: torch.dtype,
        rotated: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """The same elements."""
        return parts["keys"].to(dtype), parts["values"].to(dtype)


CODEC = Raw
