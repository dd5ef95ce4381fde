"""Write new keys and values into the slots of the pool."""

import triton
import triton.language as tl
from torch import Tensor

from kvtool.engine.compute.kernels.layers import LayerBlocks


def store(key: Tensor, value: Tensor, writes: Tensor, blocks: LayerBlocks) -> None:
    """key [T, kv_heads, D] and value [T, kv_heads, Dv] to tokens `writes` int64 [T] of raw blocks.

    A token's index is slot * block_size + offset. Any strides but the last, which is 1.
    """
    tokens, kv_heads, width = key.shape
    assert key.stride(2) == 1 and value.stride(2) == 1
    _store[(tokens, kv_heads)](
        key,
        value,
        writes,
        blocks.keys,
        blocks.values,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        KV_HEADS=kv_heads,
        D=width,
        DV=value.shape[2],
        PD=triton.next_power_of_2(width),
        PV=triton.next_power_of_2(value.shape[2]),
    )


@triton.jit
def _store(
    KEY,
    VALUE,
    WRITES,
    KEYS,
    VALUES,
    key_stride,
    key_head,
    value_stride,
    value_head,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    PD: tl.constexpr,
    PV: tl.constexpr,
):
    """Grid (tokens, kv heads)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    place = tl.load(WRITES + token) * KV_HEADS + head
    d = tl.arange(0, PD)
    dv = tl.arange(0, PV)
    key = tl.load(KEY + token * key_stride + head * key_head + d, mask=d < D)
    value = tl.load(VALUE + token * value_stride + head * value_head + dv, mask=dv < DV)
    tl.store(KEYS + place * D + d, key, mask=d < D)
    tl.store(VALUES + place * DV + dv, value, mask=dv < DV)


def store_reference(key: Tensor, value: Tensor, writes: Tensor, blocks: LayerBlocks) -> None:
    """`store` by index."""
    blocks.keys.flatten(0, 1)[writes] = key
    blocks.values.flatten(0, 1)[writes] = value
