"""Sensitivity: which blocks and which layers suffer from few bits, measured before anything is stored.

A block's sensitivity is cheap: for the queries of a continuation, how far the attention's output moves
(relative squared error after the output projection) when this one block is quantized. It ranks blocks as
their true damage does, and needs no forward per block. A layer's damage is dear, a forward for each layer's
keys and values, but it is a property of the model: it is measured once, on a fixed text, and kept.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kvtool.engine.compute.arena import Block
from kvtool.engine.storage.codec import BlockCodec
from kvtool.engine.trials import Continuation, Trials
from kvtool.engine.watching import watching

POSITIONS = 32
"""Queries of a continuation that are looked at, evenly spaced: more rank no better."""

PROJECTIONS = ("o_proj", "out_proj", "c_proj", "dense", "wo")
"""What models call the linear map behind attention; without one the output itself is compared."""


def block_sensitivity(
    trials: Trials, asked: Continuation, codec_of: Callable[[int], BlockCodec]
) -> NDArray[np.float64]:
    """For each block of the prefix the error of attention outputs with it alone in its codec.

    float64 [blocks]: |W (out' - out)|^2 / |W out|^2, mean over queries, summed over layers.
    """
    exact = trials.exact(asked.rows)
    restored = [trials.restored(row, codec_of(row)) for row in asked.rows]
    total = torch.zeros(len(exact), dtype=torch.float64)
    layer = 0

    def see(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scale: float, cap: float | None
    ) -> None:
        nonlocal layer
        window = trials.model.config.layers[layer].window
        pairs = [
            torch.cat([block[layer][side] for block in blocks])
            for blocks in (exact, restored)
            for side in (0, 1)
        ]
        moved = _outputs_without_each(query, key, value, pairs, len(exact), scale, cap, window)
        projected = _project(module, moved)
        base, errors = projected[:, 0], projected[:, 1:] - projected[:, :1]
        share = errors.double().square().sum(-1) / base.double().square().sum(-1, keepdim=True).clamp_min(
            1e-30
        )
        total.add_(share.mean(0).cpu())
        layer += 1

    with watching(trials.model, see):
        trials.over(exact, asked.tokens)
    return total.numpy()


def layer_damage(trials: Trials, asked: Continuation, codec: BlockCodec) -> NDArray[np.float64]:
    """Mean KL of the continuation with one layer's keys, and one layer's values, in `codec`: [layers, 2]."""
    exact = trials.exact(asked.rows)
    restored = [trials.restored(row, codec) for row in asked.rows]
    truth = torch.log_softmax(trials.over(exact, asked.tokens), -1)
    layers = len(trials.model.config.layers)
    found = np.zeros((layers, 2))
    for layer in range(layers):
        for side in (0, 1):
            blocks = [
                _with_layer(whole, other, layer, side) for whole, other in zip(exact, restored, strict=True)
            ]
            logits = torch.log_softmax(trials.over(blocks, asked.tokens), -1)
            found[layer, side] = max(float((truth.exp() * (truth - logits)).sum(-1).mean()), 0.0)
    return found


def _with_layer(exact: Block, restored: Block, layer: int, side: int) -> Block:
    """The exact block with keys (side 0) or values (1) of one layer restored."""
    block = list(exact)
    pair = (restored[layer][0], exact[layer][1]) if side == 0 else (exact[layer][0], restored[layer][1])
    block[layer] = pair
    return block


def _outputs_without_each(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pairs: Sequence[Tensor],
    blocks: int,
    scale: float,
    cap: float | None,
    window: int | None,
) -> Tensor:
    """Attention outputs [positions, 1 + blocks, heads * dim]: exact, then with each block restored.

    query [H, T, D], key and value [Hkv, T, D] of the continuation; pairs: exact keys, exact values, restored
    keys, restored values [tokens, Hkv, D] of the prefix. Sums over a block's tokens are exchanged, so all
    blocks cost two passes.
    """
    kv_heads, tokens = key.shape[0], key.shape[1]
    at = torch.linspace(0, tokens - 1, min(POSITIONS, tokens), device=query.device).long()
    queries = query.float()[:, at].reshape(kv_heads, -1, len(at), query.shape[2]) * scale
    keys, values, other_keys, other_values = (part.to(query.device).float().transpose(0, 1) for part in pairs)
    prefix = keys.shape[1]
    own = _capped(queries @ key.float()[:, None].transpose(2, 3), cap)
    positions = torch.arange(tokens, device=query.device)
    own = own.masked_fill(_hidden(at, positions, window), -torch.inf)
    hidden = _hidden(at + prefix, torch.arange(prefix, device=query.device), window)
    scores = [
        _capped(queries @ side[:, None].transpose(2, 3), cap).masked_fill(hidden, -torch.inf)
        for side in (keys, other_keys)
    ]
    top = torch.stack([own.amax(-1), scores[0].amax(-1), scores[1].amax(-1)]).amax(0)[..., None]
    by_block = (*scores[0].shape[:3], blocks, -1)
    weights = [torch.exp(side - top).reshape(by_block) for side in scores]
    sums = [side.sum(-1) for side in weights]
    parts = [
        torch.einsum("hgpbt,hbtd->hgpbd", weight, side.reshape(kv_heads, blocks, -1, side.shape[2]))
        for weight, side in zip(weights, (values, other_values), strict=True)
    ]
    tail = torch.exp(own - top)
    whole = parts[0].sum(3) + tail @ value.float()[:, None]
    norm = sums[0].sum(3) + tail.sum(-1)
    exchanged = (whole[..., None, :] - parts[0] + parts[1]) / (norm[..., None] - sums[0] + sums[1])[..., None]
    outputs = torch.cat([(whole / norm[..., None])[..., None, :], exchanged], 3)
    return outputs.permute(2, 3, 0, 1, 4).flatten(2)


def _hidden(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """Whether a query at a position does not see a key at another: bool [queries, keys]."""
    away = queries[:, None] - keys[None]
    return (away < 0) if window is None else (away < 0) | (away >= window)


def _capped(scores: Tensor, cap: float | None) -> Tensor:
    return scores if cap is None else torch.tanh(scores / cap) * cap


def _project(module: nn.Module, outputs: Tensor) -> Tensor:
    """Through the layer's output projection, without its bias, where it has one of the usual names."""
    for name in PROJECTIONS:
        projection = getattr(module, name, None)
        if isinstance(projection, nn.Module):
            weight = next(projection.parameters())
            zero = projection(torch.zeros_like(outputs[:1, :1]).to(weight.dtype))
            projected: Tensor = (projection(outputs.to(weight.dtype)) - zero).float()
            return projected
    return outputs
