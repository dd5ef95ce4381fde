"""What a model's attention layers look like, learned by watching one tiny forward, not by guessing.

Under the name `kvtool_probe` a recorder stands in transformers' attention and mask registries: it sees
the shapes, the window and the extras that each layer really uses. Whatever the paged path could not
reproduce is refused here, by the layer's name.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from kvtool.errors import KvtoolError

PROBE = "kvtool_probe"
PROBE_TOKENS = 3
FULL = 0.0
"""In place of a window's size in the marker mask: all earlier tokens are visible."""

FOREIGN = ("position_bias", "sinks", "indices", "block_indices", "alibi")
"""Arguments of some models' attention that change its result in ways the paged path does not know."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One attention layer. `window`: tokens visible, the current one included; None for all."""

    query_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None
    softcap: float | None
    sinks: bool

    def describe(self) -> str:
        """All fields in one stable line, for the fingerprint."""
        return (
            f"q{self.query_heads} kv{self.kv_heads} k{self.key_dim} v{self.value_dim} "
            f"w{self.window} c{self.softcap} s{int(self.sinks)}"
        )


def probe_layers(module: nn.Module, where: str) -> tuple[Layer, ...]:
    """The attention layers of a decoder-only model whose implementation is set to PROBE, in order.

    KvtoolError, beginning with `where`, when a layer is missing or cannot be served from a paged cache.
    """
    seen: dict[int, Layer] = {}
    device = next(module.parameters()).device
    positions = torch.arange(PROBE_TOKENS, device=device)[None]
    try:
        with torch.inference_mode():
            module(input_ids=positions + 1, position_ids=positions, use_cache=False, kvtool=seen)
    except KvtoolError as error:
        raise KvtoolError(f"{where}: {error.message}", error.hint) from error
    count = int(module.config.get_text_config().num_hidden_layers)  # type: ignore[union-attr, operator]
    missing = [index for index in range(count) if index not in seen]
    if missing or len(seen) != count:
        raise KvtoolError(
            f"{where}: layers {missing or sorted(seen)} of {count} do not attend through "
            "transformers' registry"
        )
    return tuple(seen[index] for index in range(count))


def _probe_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **extras: Any,
) -> tuple[Tensor, None]:
    """Record the layer; the result is only of the right shape."""
    seen = extras.get("kvtool")
    index = getattr(module, "layer_idx", None)
    if seen is None or index is None:
        raise KvtoolError(
            f"{type(module).__name__}: does not pass its layer number and arguments to attention"
        )
    here = f"layer {index} ({type(module).__name__})"
    if index in seen:
        raise KvtoolError(f"{here}: attends twice in one forward")
    foreign = [name for name in FOREIGN if extras.get(name) is not None]
    if foreign or extras.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise KvtoolError(
            f"{here}: uses {', '.join(foreign) or 'non-causal attention'}, which is not supported"
        )
    if attention_mask is None:
        raise KvtoolError(f"{here}: attends without a causal mask")
    window = float(attention_mask.flatten()[0])
    seen[index] = Layer(
        query_heads=query.shape[1],
        kv_heads=key.shape[1],
        key_dim=key.shape[3],
        value_dim=value.shape[3],
        window=None if window == FULL else int(window),
        softcap=extras.get("softcap"),
        sinks=extras.get("s_aux") is not None,
    )
    rows = value.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    return rows.transpose(1, 2).contiguous(), None


def _probe_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: Any = None,
    local_size: int | None = None,
    device: torch.device | str = "cpu",
    **_: Any,
) -> Tensor:
    """A mask [1, 1, q, kv] filled with the window's size, after checking that the mask is just that."""
    for window in (None, local_size):
        if _is_causal(mask_function, window, (local_size or PROBE_TOKENS) + 2):
            size = FULL if window is None else float(window)
            return torch.full((1, 1, q_length, kv_length), size, device=device)
    raise KvtoolError(
        "its attention mask is neither causal nor a sliding window (chunked or prefix attention)"
    )


def _is_causal(mask_function: Any, window: int | None, reach: int) -> bool:
    """Whether query rows about `reach` see exactly the keys that a causal window of that size shows."""
    rows = torch.tensor([0, 1, reach // 2, reach - 3, reach - 2, reach - 1, 2 * reach]).clamp(min=0)[:, None]
    keys = torch.arange(2 * reach + 2)[None]
    zero = torch.zeros((), dtype=torch.long)
    expected = keys <= rows
    if window is not None:
        expected &= keys > rows - window
    try:
        shown = mask_function(zero, zero, rows, keys)
    except (IndexError, RuntimeError):
        return False  # a mask that looks positions up in a table is none of the two
    return bool((torch.broadcast_to(torch.as_tensor(shown), expected.shape) == expected).all())


AttentionInterface.register(PROBE, _probe_attention)
AttentionMaskInterface.register(PROBE, _probe_mask)
