"""half: 16 bits per element whatever the arena: fp16 of a float32 arena, 16-bit arenas unchanged.

What models are served in; blocks that `auto` protects are stored so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from kvtool.engine.storage.layout import LayerGroup, Part
from kvtool.errors import KvtoolError


@dataclass(frozen=True)
class Half:
    """Parts: keys, values [layers, tokens, heads, dim]."""

    name: ClassVar[str] = "half"
    compressed: ClassVar[bool] = False
    steered: ClassVar[bool] = False

    def config(self) -> dict[str, Any]:
        """No settings."""
        return {"codec": self.name}

    def parts(self, group: LayerGroup, tokens: int, dtype: str, first: bool) -> list[Part]:
        """Keys and values in 16 bits."""
        kind = "F16" if dtype == "F32" else dtype
        return [
            Part("keys", kind, (group.layers, tokens, group.kv_heads, group.key_dim)),
            Part("values", kind, (group.layers, tokens, group.kv_heads, group.value_dim)),
        ]

    def encode(
        self, keys: Tensor, values: Tensor, first: bool, feedback: Tensor | None = None
    ) -> dict[str, Tensor]:
        """float32 to the nearest fp16; KvtoolError beyond its range."""
        return {"keys": _halved(keys), "values": _halved(values)}

    def decode(
        self,
        parts: Mapping[str, Tensor],
        group: LayerGroup,
        first: bool,
        dtype: torch.dtype,
        rotated: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """The stored elements in `dtype`."""
        return parts["keys"].to(dtype), parts["values"].to(dtype)


def _halved(tensor: Tensor) -> Tensor:
    if tensor.dtype != torch.float32:
        return tensor
    half = tensor.half()
    if bool(torch.isinf(half).any()):
        raise KvtoolError("half: an element is too large for fp16", "use --codec raw")
    return half


CODEC = Half
