"""What the engine knows of a loaded model."""

from dataclasses import dataclass

import torch
from torch import nn

from kvtool.engine.compute.layout import Layer
from kvtool.errors import KvtoolError
from kvtool.tokens import PromptEncoder


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the engine needs to know of a model's shape."""

    layers: tuple[Layer, ...]
    vocab: int
    max_positions: int

    @property
    def layer_shapes(self) -> list[tuple[int, int, int]]:
        """(kv_heads, key_dim, value_dim) of each layer, in order."""
        return [(layer.kv_heads, layer.key_dim, layer.value_dim) for layer in self.layers]


@dataclass(frozen=True, eq=False)
class Model:
    """A model whose attention is paged: only `Runner` runs it.

    `fingerprint` are named fields and their `digest`. `stop_tokens` end an answer.
    """

    name: str
    module: nn.Module
    config: ModelConfig
    fingerprint: dict[str, str]
    device: torch.device
    dtype: torch.dtype
    stop_tokens: frozenset[int]
    prompt_encoder: PromptEncoder | None

    @property
    def encoder(self) -> PromptEncoder:
        """Messages or text -> token ids; an error for a model directory without a tokenizer."""
        if self.prompt_encoder is None:
            raise KvtoolError(f"{self.name}: the model directory has no tokenizer")
        return self.prompt_encoder

    @property
    def dtype_name(self) -> str:
        """torch's name: float32, bfloat16 or float16."""
        return str(self.dtype).removeprefix("torch.")
