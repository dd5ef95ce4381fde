"""One layer of a packed batch through the kernels: store what is new, attend tile by tile."""

import torch
from torch import Tensor

from kvtool.engine.compute.kernels.attend import attend
from kvtool.engine.compute.kernels.layers import LayerBlocks
from kvtool.engine.compute.kernels.store import store
from kvtool.engine.compute.kernels.tables import Tiling


def paged(
    plan: Tiling,
    blocks: LayerBlocks,
    writes: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    *,
    window: int | None,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """query [T, H, D], key [T, Hkv, D], value [T, Hkv, Dv] -> output [T, H, Dv], log-sum-exp [T, H] float32.

    `writes` int64 [T]: where the new keys and values go, slot * block_size + offset.
    """
    store(key, value, writes, blocks)
    rows, heads, _ = query.shape
    kv_heads = key.shape[1]
    out = query.new_empty((rows, heads, value.shape[2]))
    sums = query.new_empty((rows, heads), dtype=torch.float32)
    key_bytes = key.shape[2] * key.element_size()
    for tiles in plan.tiles(heads // kv_heads, kv_heads, key_bytes):
        attend(query, blocks, tiles, scale, window=window, softcap=softcap, out=out, sums=sums)
    return out, sums
