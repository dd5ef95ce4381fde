"""Full blocks between raw and quantized slots, all layers of one shape in one launch, on the codecs' grids.

A program takes one head's run of tokens that share a grid, as two halves of the head's channels: 4-bit codes
of both lie in one byte, and values have a grid for each. Rotation is a product with its matrix.
"""

import triton
import triton.language as tl
from torch import Tensor

from kvtool.engine.compute.kernels.attend import wide_steps
from kvtool.engine.compute.kernels.layers import QuantizedBlocks, dequantize, rotation
from kvtool.engine.storage import grid
from kvtool.engine.storage.packing import pack
from kvtool.engine.storage.rotation import rotate


def squeeze(keys: Tensor, values: Tensor, sources: Tensor, blocks: QuantizedBlocks, targets: Tensor) -> None:
    """Quantize raw blocks `sources` into slots `targets`, both int64 [n].

    keys [layers, raw slots, block_size, kv_heads, D], values [..., Dv], `blocks` of as many layers. An
    element is restored to within half its step; one beyond the largest step is clipped.
    """
    for tensor, bits, along, (codes, steps, offsets) in _sides(keys, values, blocks):
        layers, _, block_size, heads, width = tensor.shape
        groups = blocks.key_steps.shape[2]
        _squeeze[(len(sources), heads, layers * groups)](
            tensor,
            sources,
            codes,
            steps,
            steps if offsets is None else offsets,
            targets,
            rotation(width, tensor.device),
            tensor.stride(0),
            codes.stride(0),
            steps.stride(0),
            ALONG=along,
            BITS=bits,
            **_shape(block_size, heads, width, groups, bits),
        )


def expand(blocks: QuantizedBlocks, sources: Tensor, keys: Tensor, values: Tensor, targets: Tensor) -> None:
    """Restore quantized blocks `sources` in raw slots `targets`: `squeeze` the other way round."""
    for tensor, bits, along, (codes, steps, offsets) in _sides(keys, values, blocks):
        layers, _, block_size, heads, width = tensor.shape
        groups = blocks.key_steps.shape[2]
        _expand[(len(sources), heads, layers * groups)](
            codes,
            steps,
            steps if offsets is None else offsets,
            sources,
            tensor,
            targets,
            rotation(width, tensor.device),
            codes.stride(0),
            steps.stride(0),
            tensor.stride(0),
            ALONG=along,
            BITS=bits,
            **_shape(block_size, heads, width, groups, bits),
        )


def _sides(
    keys: Tensor, values: Tensor, blocks: QuantizedBlocks
) -> list[tuple[Tensor, int, int, tuple[Tensor, Tensor, Tensor | None]]]:
    """Raw tensor, bits, whether grids run along tokens (0) or channels (1), codes and grids."""
    key_parts = blocks.key_codes, blocks.key_steps, blocks.key_offsets
    value_parts = blocks.value_codes, blocks.value_steps, blocks.value_offsets
    return [(keys, blocks.key_bits, 0, key_parts), (values, blocks.value_bits, 1, value_parts)]


def _shape(block_size: int, heads: int, width: int, groups: int, bits: int) -> dict[str, int]:
    """Sizes up to powers of two; a rotation is read in pieces that shared memory holds."""
    half = max(triton.next_power_of_2(width // 2), 16)
    return {
        "BLOCK": block_size,
        "HEADS": heads,
        "D": width,
        "GROUPS": groups,
        "TOKENS": block_size // groups,
        "PD": max(triton.next_power_of_2(width), 16),
        "HD": half,
        "PIECE": min(half, 32) if bits == 4 else half,
        "num_stages": 1,
    }


@triton.jit
def _squeeze(
    RAW,
    SOURCES,
    CODES,
    STEPS,
    OFFSETS,
    TARGETS,
    ROTATION,
    raw_layer,
    codes_layer,
    steps_layer,
    ALONG: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    GROUPS: tl.constexpr,
    TOKENS: tl.constexpr,
    PD: tl.constexpr,
    HD: tl.constexpr,
    PIECE: tl.constexpr,
):
    """Grid (blocks, kv heads, layers * GROUPS)."""
    head = tl.program_id(1)
    layer = (tl.program_id(2) // GROUPS).to(tl.int64)
    group = tl.program_id(2) % GROUPS
    token = group * TOKENS + tl.arange(0, TOKENS)
    h = tl.arange(0, HD)
    near = (h < D // 2)[None] & (token >= 0)[:, None]
    source = tl.load(SOURCES + tl.program_id(0))
    target = tl.load(TARGETS + tl.program_id(0))
    rows = RAW + layer * raw_layer + (((source * BLOCK + token) * HEADS + head) * D)[:, None]
    if BITS == 4:
        low = tl.zeros((TOKENS, HD), tl.float32)
        high = tl.zeros((TOKENS, HD), tl.float32)
        for at in range(0, D, PIECE):
            d = at + tl.arange(0, PIECE)
            part = tl.load(rows + d[None], mask=(d < D)[None] & (token >= 0)[:, None], other=0.0)
            turn = ROTATION + d[:, None] * D + h[None]
            mask = (d < D)[:, None] & (h < D // 2)[None]
            low += _product(part, tl.load(turn, mask=mask, other=0.0))
            high += _product(part, tl.load(turn + D // 2, mask=mask, other=0.0))
    else:
        low = tl.load(rows + h[None], mask=near, other=0.0).to(tl.float32)
        high = tl.load(rows + D // 2 + h[None], mask=near, other=0.0).to(tl.float32)
    if ALONG == 0:
        place = layer * steps_layer + ((target * GROUPS + group) * HEADS + head) * D + h
        inside = h < D // 2
        apart = D // 2
    else:
        place = layer * steps_layer + ((target * BLOCK + token) * HEADS + head) * 2
        inside = token >= 0
        apart = 1
    low_codes, low_steps, low_offsets = _on_grid(low, near, ALONG, BITS)
    high_codes, high_steps, high_offsets = _on_grid(high, near, ALONG, BITS)
    tl.store(STEPS + place, low_steps.to(tl.uint8), mask=inside)
    tl.store(STEPS + place + apart, high_steps.to(tl.uint8), mask=inside)
    line = CODES + layer * codes_layer
    if BITS == 4:
        tl.store(OFFSETS + place, low_offsets.to(tl.int8), mask=inside)
        tl.store(OFFSETS + place + apart, high_offsets.to(tl.int8), mask=inside)
        line += (((target * BLOCK + token) * HEADS + head) * (D // 2))[:, None] + h[None]
        tl.store(line, (low_codes | (high_codes << 4)).to(tl.uint8), mask=near)
    else:
        line += (((target * BLOCK + token) * HEADS + head) * D)[:, None] + h[None]
        tl.store(line, low_codes.to(tl.int8), mask=near)
        tl.store(line + D // 2, high_codes.to(tl.int8), mask=near)


@triton.jit
def _on_grid(numbers, near, ALONG: tl.constexpr, BITS: tl.constexpr):
    """Codes int32 [tokens, channels], steps and offsets int32 along the other axis: `grid.encode`."""
    if BITS == 8:
        steps = _steps(tl.max(tl.abs(numbers), ALONG) / 127.0)
        codes = _round(numbers / tl.expand_dims(_divisor(steps), ALONG))
        return tl.minimum(tl.maximum(codes, -127.0), 127.0).to(tl.int32), steps, steps
    low = tl.min(tl.where(near, numbers, float("inf")), ALONG)
    high = tl.max(tl.where(near, numbers, float("-inf")), ALONG)
    far = tl.abs(low) / 127.0
    steps = _steps(tl.maximum((high - low) / 16.0, far))
    fits = _round(high / _divisor(steps)) - _round(low / _divisor(steps)) <= 15.0
    steps = tl.where(fits, steps, _steps(tl.maximum((high - low) / 15.0, far)))
    step = _divisor(steps)
    offsets = tl.minimum(tl.maximum(_round(low / step), -127.0), 127.0)
    codes = _round(numbers / tl.expand_dims(step, ALONG)) - tl.expand_dims(offsets, ALONG)
    return tl.minimum(tl.maximum(codes, 0.0), 15.0).to(tl.int32), steps, offsets.to(tl.int32)


@triton.jit
def _steps(exact):
    """Codes of steps as int32, none below `exact`."""
    half = exact.to(tl.float16)
    bits = half.to(tl.int16, bitcast=True).to(tl.int32)
    bits = tl.where(half.to(tl.float32) < exact, bits + 1, bits)
    return tl.minimum((bits + 0x7F) >> 7, 0xF7)


@triton.jit
def _divisor(steps):
    """Steps as float32; a group of zeros has none, and any will do."""
    step = wide_steps(steps)
    return tl.where(step == 0.0, 1.0, step)


@triton.jit
def _round(numbers):
    """To the nearest whole number, ties to even: 1.5 * 2**23 leaves no room for a fraction."""
    return numbers + 12582912.0 - 12582912.0


@triton.jit
def _expand(
    CODES,
    STEPS,
    OFFSETS,
    SOURCES,
    RAW,
    TARGETS,
    ROTATION,
    codes_layer,
    steps_layer,
    raw_layer,
    ALONG: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    GROUPS: tl.constexpr,
    TOKENS: tl.constexpr,
    PD: tl.constexpr,
    HD: tl.constexpr,
    PIECE: tl.constexpr,
):
    """Grid (blocks, kv heads, layers * GROUPS)."""
    head = tl.program_id(1)
    layer = (tl.program_id(2) // GROUPS).to(tl.int64)
    group = tl.program_id(2) % GROUPS
    token = group * TOKENS + tl.arange(0, TOKENS)
    source = tl.load(SOURCES + tl.program_id(0))
    target = tl.load(TARGETS + tl.program_id(0))
    from_row = ((source * BLOCK + token) * HEADS + head)[:, None]
    rows = RAW + layer * raw_layer + ((target * BLOCK + token) * HEADS + head)[:, None] * D
    d = tl.arange(0, PD)
    whole = tl.zeros((TOKENS, PD), tl.float32)
    for at in range(0, D // 2, PIECE):
        h = at + tl.arange(0, PIECE)
        near = (h < D // 2)[None] & (token >= 0)[:, None]
        if ALONG == 0:
            place = layer * steps_layer + ((source * GROUPS + group) * HEADS + head) * D + h
            inside = h < D // 2
            apart = D // 2
        else:
            place = layer * steps_layer + ((source * BLOCK + token) * HEADS + head) * 2
            inside = token >= 0
            apart = 1
        if BITS == 4:
            line = CODES + layer * codes_layer + from_row * (D // 2) + h[None]
            both = tl.load(line, mask=near, other=0)
            offsets = tl.load(OFFSETS + place, mask=inside, other=0).to(tl.float32)
            low = (both & 15).to(tl.float32) + tl.expand_dims(offsets, ALONG)
            offsets = tl.load(OFFSETS + place + apart, mask=inside, other=0).to(tl.float32)
            high = (both >> 4).to(tl.float32) + tl.expand_dims(offsets, ALONG)
        else:
            line = CODES + layer * codes_layer + from_row * D + h[None]
            low = tl.load(line, mask=near, other=0).to(tl.float32)
            high = tl.load(line + D // 2, mask=near, other=0).to(tl.float32)
        low *= tl.expand_dims(wide_steps(tl.load(STEPS + place, mask=inside, other=0)), ALONG)
        high *= tl.expand_dims(wide_steps(tl.load(STEPS + place + apart, mask=inside, other=0)), ALONG)
        if BITS == 4:
            turn = ROTATION + h[:, None] * D + d[None]
            mask = (h < D // 2)[:, None] & (d < D)[None]
            whole += _product(tl.where(near, low, 0.0), tl.load(turn, mask=mask, other=0.0))
            turn += D // 2 * D
            whole += _product(tl.where(near, high, 0.0), tl.load(turn, mask=mask, other=0.0))
        else:
            tl.store(rows + h[None], low.to(RAW.dtype.element_ty), mask=near)
            tl.store(rows + D // 2 + h[None], high.to(RAW.dtype.element_ty), mask=near)
    if BITS == 4:
        every = (d < D)[None] & (token >= 0)[:, None]
        tl.store(rows + d[None], whole.to(RAW.dtype.element_ty), mask=every)


@triton.jit
def _product(left, right):
    """In float32: a rotation that rounded would move numbers to other codes."""
    return tl.dot(left.to(tl.float32), right, input_precision="ieee")


def squeeze_reference(
    keys: Tensor, values: Tensor, sources: Tensor, blocks: QuantizedBlocks, targets: Tensor
) -> None:
    """`squeeze` by the codecs' own grids."""
    for tensor, bits, along, (codes, steps, offsets) in _sides(keys, values, blocks):
        numbers = tensor[:, sources].float()
        numbers = rotate(numbers) if bits == 4 else numbers
        axis, groups = (2, blocks.key_steps.shape[2]) if along == 0 else (4, 2)
        made = grid.encode(numbers.unflatten(axis, (groups, -1)), axis + 1, bits, bits == 8)
        flat = made.codes.flatten(axis, axis + 1)
        codes[:, targets] = flat if bits == 8 else pack(flat, 4)
        steps[:, targets] = made.steps.squeeze(axis + 1)
        if offsets is not None and made.offsets is not None:
            offsets[:, targets] = made.offsets.squeeze(axis + 1)


def expand_reference(
    blocks: QuantizedBlocks, sources: Tensor, keys: Tensor, values: Tensor, targets: Tensor
) -> None:
    """`expand` block by block."""
    for layer in range(len(keys)):
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            pair = dequantize(blocks.layer(layer), source)
            keys[layer, target], values[layer, target] = (each.to(keys.dtype) for each in pair)
