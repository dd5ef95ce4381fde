"""Shows what a model's attention is asked: queries, keys and values behind RoPE, layer by layer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from kvtool.engine.compute import attention
from kvtool.engine.compute.model import Model

WATCHED = "kvtool_watched"

See = Callable[[nn.Module, Tensor, Tensor, Tensor, float, float | None], None]
"""Module, query [heads, tokens, dim], key and value [kv_heads, tokens, dim], scale, cap of the scores."""

_seeing: list[See] = []


@contextmanager
def watching(model: Model, see: See) -> Iterator[None]:
    """While it lasts every attention of the model is shown to `see` before it is computed."""
    module: Any = model.module
    module.set_attn_implementation(WATCHED)
    _seeing.append(see)
    try:
        yield
    finally:
        _seeing.pop()
        module.set_attn_implementation(attention.NAME)


def _watched_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    _seeing[-1](module, query[0], key[0], value[0], scale, softcap)
    rest |= {"scaling": scaling, "softcap": softcap}
    return attention.paged_attention(module, query, key, value, attention_mask, **rest)


AttentionInterface.register(WATCHED, _watched_attention)
