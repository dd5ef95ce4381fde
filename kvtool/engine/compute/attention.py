"""`kvtool_paged`: attention over block tables, registered with transformers for any model to use.

A forward gets a `PagedStep` as its argument `kvtool`. Each layer writes its new keys (after RoPE) and values
into the arena, then executes the step's plan. On CUDA that is a `Tiling` for our own kernels. On CPUs the
compiled kernel of `cpu/` does both where it can (see `cpu/attend.py`); else the plan is a `ReadPlan`, each
read of which is computed by torch's flash kernel, which returns the log-sum-exp that merging needs, or by
plain matrix products (soft caps, unequal head sizes).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.arrivals import Arrival
from kvtool.engine.compute.cpu.attend import CoresBatch
from kvtool.engine.compute.kernels.tables import Tiling
from kvtool.engine.compute.reads import Part, ReadPlan

NAME = "kvtool_paged"
SCORES = 1 << 26
"""Elements of a score matrix that the plain kernel holds at once."""


@dataclass(frozen=True, slots=True)
class PagedStep:
    """One packed forward: where its new tokens go (`writes` int64 [T]: slot * block_size + offset), what it
    reads, the window of each layer, the blocks that are still on their way, and the same batch for CPU cores
    where they can compute it. Rows after the first T only fill the batch up: they are neither stored nor
    attended to, and get zeros.
    """

    arena: Arena
    writes: Tensor
    plan: ReadPlan | Tiling
    windows: tuple[int | None, ...]
    arrivals: Sequence[Arrival] = ()
    cores: CoresBatch | None = None


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    kvtool: PagedStep | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """query [1, H, T, D], key [1, Hkv, T, D], value [1, Hkv, T, Dv] -> [1, T, H, Dv].

    `scaling` defaults to D ** -0.5. `s_aux` [H] are the logits of attention sinks.
    """
    assert kvtool is not None, "this model runs through Runner.step"
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    for arrival in kvtool.arrivals:
        arrival.layers[layer].wait()
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    compute = _gathered if isinstance(kvtool.plan, ReadPlan) else _tiled
    tokens, filled = len(kvtool.writes), query.shape[2]
    if tokens < filled:
        query, key, value = (each[:, :, :tokens] for each in (query, key, value))
    out, sums = compute(kvtool, layer, query[0], key[0], value[0], scale, softcap)
    if s_aux is not None:
        # A sink adds exp(s) to the softmax's sum and nothing to its output.
        out = out * torch.sigmoid(sums - s_aux.to(sums.dtype))[..., None].to(out.dtype)
    if tokens < filled:
        out = functional.pad(out, (0, 0, 0, 0, 0, filled - tokens))
    return out[None].contiguous(), None


def _tiled(
    step: PagedStep,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """(output [T, H, Dv], log-sum-exp [T, H]) by the kernels."""
    from kvtool.engine.compute.kernels.paged import paged

    assert not isinstance(step.plan, ReadPlan)
    return paged(
        step.plan,
        step.arena.layer(layer),
        step.writes,
        query.transpose(0, 1),
        key.transpose(0, 1),
        value.transpose(0, 1),
        scale,
        window=step.windows[layer],
        softcap=softcap,
    )


def _gathered(
    step: PagedStep,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """(output [T, H, Dv], log-sum-exp [T, H]) by CPU cores, or by torch's operations."""
    if step.cores is not None and softcap is None:
        arena_keys, arena_values = step.arena.keys[layer], step.arena.values[layer]
        return step.cores.attend(arena_keys, arena_values, query, key, value, scale, step.windows[layer])
    kv_heads, tokens = key.shape[:2]
    step.arena.keys[layer].flatten(0, 1).index_copy_(0, step.writes, key.transpose(0, 1))
    step.arena.values[layer].flatten(0, 1).index_copy_(0, step.writes, value.transpose(0, 1))
    queries = query.reshape(kv_heads, -1, tokens, query.shape[2])
    out, sums = _read_all(step, layer, queries, key, value, scale, softcap)
    return out.flatten(0, 1).transpose(0, 1), sums.flatten(0, 1).transpose(0, 1)


def _read_all(
    step: PagedStep,
    layer: int,
    queries: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """(output [Hkv, G, T, Dv], log-sum-exp [Hkv, G, T]) of all rows over all of their reads."""
    assert isinstance(step.plan, ReadPlan)
    parts = step.plan.parts(step.windows[layer])
    tokens = queries.shape[2]
    if len(parts[0]) == tokens:
        out, sums = _read(step, layer, parts[0], queries, key, value, scale, softcap)
        parts = parts[1:]
    else:
        out = queries.new_empty((*queries.shape[:3], value.shape[2]))
        sums = queries.new_empty(queries.shape[:3], dtype=torch.float32)
    for part in parts:
        if len(part) == tokens:
            new = _read(step, layer, part, queries, key, value, scale, softcap)
            out, sums = _merged(out, sums, *new)
            continue
        rows = part.rows
        new = _read(step, layer, part, queries[:, :, rows], key, value, scale, softcap)
        if not part.opens:
            new = _merged(out[:, :, rows], sums[:, :, rows], *new)
        out[:, :, rows], sums[:, :, rows] = new
    return out, sums


def _merged(out: Tensor, sums: Tensor, more: Tensor, more_sums: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two disjoint sets of keys, [..., Dv] and log-sum-exp [...], as one."""
    share = torch.sigmoid(more_sums - sums)[..., None].to(out.dtype)
    return torch.lerp(out, more, share), torch.logaddexp(sums, more_sums)


def _read(
    step: PagedStep,
    layer: int,
    part: Part,
    queries: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    if isinstance(part.keys, slice):
        keys, values = key[:, part.keys], value[:, part.keys]
    else:
        keys, values = step.arena.read_tokens(layer, part.keys)
    if queries.device.type == "cpu" and softcap is None and keys.shape[2] == values.shape[2]:
        return flash(queries, keys, values, scale, part.mask, causal=part.causal)
    return plain(queries, keys, values, scale, part.mask, causal=part.causal, softcap=softcap)


def flash(
    queries: Tensor, keys: Tensor, values: Tensor, scale: float, mask: Tensor | None, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """torch's CPU flash kernel. queries [Hkv, G, T, D], keys and values [Hkv, S, D], mask [T, S].

    Returns output [Hkv, G, T, D] and log-sum-exp [Hkv, G, T] in float32. No keys are copied: where all
    rows see all keys, the heads of a group are rows of one product; else they share keys by stride 0.
    """
    kv_heads, groups, tokens, width = queries.shape
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    if mask is None and not causal:
        rows = queries.reshape(1, kv_heads, groups * tokens, width)
        out, sums = kernel(rows, keys[None], values[None], 0.0, False, scale=scale)
        return out.reshape(queries.shape), sums.reshape(kv_heads, groups, tokens)
    each = (kv_heads, groups, keys.shape[1], width)
    out, sums = kernel(
        queries,
        keys[:, None].expand(each),
        values[:, None].expand(each),
        0.0,
        causal,
        attn_mask=None if mask is None else mask[None, None],
        scale=scale,
    )
    return out, sums


def plain(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    mask: Tensor | None,
    *,
    causal: bool,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`flash` by matrix products, on any device, with a soft cap and value size of its own."""
    kv_heads, groups, tokens, width = queries.shape
    if causal:
        mask = queries.new_full((tokens, tokens), -torch.inf).triu_(1)
    step = max(SCORES // (kv_heads * groups * keys.shape[1]), 1)
    outs, all_sums = [], []
    for start in range(0, tokens, step):
        chunk = queries[:, :, start : start + step]
        rows = chunk.reshape(kv_heads, -1, width)
        scores = (torch.matmul(rows, keys.transpose(1, 2)) * scale).float()
        scores = scores.view(kv_heads, groups, -1, keys.shape[1])
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if mask is not None:
            scores = scores + mask[start : start + step]
        sums = torch.logsumexp(scores, -1)
        weights = torch.exp(scores - sums[..., None]).to(values.dtype)
        outs.append(torch.matmul(weights.flatten(1, 2), values).view(*chunk.shape[:3], -1))
        all_sums.append(sums)
    return torch.cat(outs, 2), torch.cat(all_sums, 2)


# No mask is registered under this name, so that transformers builds none: the paged path masks for itself.
AttentionInterface.register(NAME, paged_attention)
