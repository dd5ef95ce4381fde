"""half: 16 bits per element whatever the arena: fp16 of a float32 arena, 16-bit arenas unchanged.

What models are served in; blocks that `auto` protects are stored so.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from kvtool.engine.storage.layout import LayerGroup, Part


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
        """float32 to the nearest fp16."""
        return {"keys": _halved(keys), "values": _halved(values)}

    def held(self, keys: Tensor, values: Tensor, parts: Mapping[str, Tensor]) -> Tensor | None:
        """Unless a float32 is beyond fp16's range."""
        if keys.dtype != torch.float32:
            return None
        return ~torch.isinf(parts["keys"]).flatten(1).any(1) & ~torch.isinf(parts["values"]).flatten(1).any(1)

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
    return tensor.half() if tensor.dtype == torch.float32 else tensor


CODEC = Half
