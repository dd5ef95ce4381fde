"""Write new keys and values into the slots of the pool, and squeeze full blocks to int8 in place."""

import torch
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


def squeeze_int8(blocks: LayerBlocks, sources: Tensor, targets: Tensor) -> None:
    """Quantize full raw blocks `sources` into int8 slots `targets`, both int64 [n].

    Keys per channel over the block, values per token and head, symmetric, scales in fp16 rounded up so that
    an element is restored to within half its scale. A prompt's first block keeps its sink by staying raw.
    """
    packed = blocks.quantized
    assert packed is not None and (packed.key_bits, packed.value_bits) == (8, 8)
    _, block_size, kv_heads, width = blocks.keys.shape
    _squeeze_int8[(len(sources), kv_heads)](
        blocks.keys,
        blocks.values,
        sources,
        targets,
        packed.key_codes,
        packed.key_scales,
        packed.value_codes,
        packed.value_scales,
        KV_HEADS=kv_heads,
        D=width,
        DV=blocks.values.shape[3],
        PD=triton.next_power_of_2(width),
        PV=triton.next_power_of_2(blocks.values.shape[3]),
        BLOCK=block_size,
    )


@triton.jit
def _squeeze_int8(
    KEYS,
    VALUES,
    SOURCES,
    TARGETS,
    KEY_CODES,
    KEY_SCALES,
    VALUE_CODES,
    VALUE_SCALES,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    PD: tl.constexpr,
    PV: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (blocks, kv heads)."""
    source = tl.load(SOURCES + tl.program_id(0))
    target = tl.load(TARGETS + tl.program_id(0))
    head = tl.program_id(1)
    n = tl.arange(0, BLOCK)
    d = tl.arange(0, PD)
    dv = tl.arange(0, PV)
    origin = (source * BLOCK + n) * KV_HEADS + head
    place = (target * BLOCK + n) * KV_HEADS + head

    keys = tl.load(KEYS + origin[:, None] * D + d[None], mask=(d < D)[None], other=0.0).to(tl.float32)
    scales = _scale(tl.max(tl.abs(keys), 0))
    tl.store(KEY_SCALES + (target * KV_HEADS + head) * D + d, scales, mask=d < D)
    tl.store(KEY_CODES + place[:, None] * D + d[None], _codes(keys, scales[None]), mask=(d < D)[None])

    values = tl.load(VALUES + origin[:, None] * DV + dv[None], mask=(dv < DV)[None], other=0.0)
    values = values.to(tl.float32)
    each = _scale(tl.max(tl.abs(values), 1))
    tl.store(VALUE_SCALES + place, each)
    tl.store(
        VALUE_CODES + place[:, None] * DV + dv[None], _codes(values, each[:, None]), mask=(dv < DV)[None]
    )


@triton.jit
def _scale(largest):
    """fp16 scale, rounded up so that the largest element needs no clipping."""
    exact = largest / 127.0
    scale = exact.to(tl.float16)
    up = (scale.to(tl.int16, bitcast=True) + 1).to(tl.float16, bitcast=True)
    return tl.where(scale.to(tl.float32) < exact, up, scale)


@triton.jit
def _codes(tensor, scales):
    """Nearest codes, ties to even."""
    wide = scales.to(tl.float32)
    exact = tensor / tl.where(wide == 0.0, 1.0, wide)
    # Adding 1.5 * 2**23 leaves no room for a fraction: the sum is rounded as IEEE 754 rounds.
    return (exact + 12582912.0 - 12582912.0).to(tl.int8)


def squeeze_int8_reference(blocks: LayerBlocks, sources: Tensor, targets: Tensor) -> None:
    """`squeeze_int8` by whole tensors."""
    packed = blocks.quantized
    assert packed is not None
    for tensor, dim, codes, scales in (
        (blocks.keys, 1, packed.key_codes, packed.key_scales),
        (blocks.values, 3, packed.value_codes, packed.value_scales),
    ):
        source = tensor[sources].float()
        exact = source.abs().amax(dim, keepdim=True) / 127.0
        scale = exact.half()
        up = (scale.view(torch.int16) + 1).view(torch.float16)
        scale = torch.where(scale.float() < exact, up, scale)
        scales[targets] = scale.squeeze(dim)
        codes[targets] = torch.round(source / torch.where(scale == 0, 1, scale.float())).to(torch.int8)
