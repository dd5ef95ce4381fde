"""Attention over block tables: one kernel for prefill tiles and for decodes whose keys are split.

A program takes a tile of consecutive tokens of one sequence with all query heads of one key-value head:
each key is loaded once for all of them. A decode is a tile of one token; since a batch of them has too
few tiles to fill a GPU, their keys are split and the pieces merged by their log-sum-exp (Flash-Decoding,
Dao et al. 2023). The softmax is computed online (FlashAttention, Dao et al. 2022), in base 2.
"""

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvtool.engine.compute.kernels.layers import LayerBlocks, rotation
from kvtool.engine.compute.kernels.merge import merge
from kvtool.engine.compute.kernels.tables import WIDE_KEY, Tiles

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""The interpreter would multiply bfloat16 as if it were integers, so products are of float32 there."""

DOT_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
DECODE_ROWS = 16
"""The fewest rows that a product can have; a decode fills some of them."""

RAW_STEP = 64
"""Keys that a program reads at a time where all blocks are raw, whatever their size."""

LOG2E = tl.constexpr(1.4426950408889634)


def attend(
    query: Tensor,
    blocks: LayerBlocks,
    tiles: Tiles,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
    out: Tensor,
    sums: Tensor,
) -> None:
    """Attention of the tiles' rows over their sequences' keys up to their own positions.

    query: [T, H, D], any strides in T and H. Writes rows of `out` [T, H, Dv] and their log-sum-exp into
    `sums` [T, H] float32; rows of no tile are left as they are. The rows' own keys and values must have
    been stored. `window`: how many keys a row sees, itself included. `softcap`: c * tanh(score / c).
    """
    rows, heads, width = query.shape
    _, block_size, kv_heads, value_width = blocks.values.shape
    assert query.stride(2) == 1 and out.is_contiguous() and sums.is_contiguous()
    assert out.shape == (rows, heads, value_width) and sums.shape == (rows, heads)
    packed = blocks.quantized
    key_bits, value_bits = (packed.key_bits, packed.value_bits) if packed else (16, 16)
    turned = query
    if key_bits == 4:
        turned = (query.float() @ rotation(width, query.device)).to(query.dtype)
    columns = value_width * (2 if value_bits == 4 else 1)
    direct = tiles.splits == 1 and value_bits != 4
    parts, part_sums = out, sums
    if not direct:
        parts = query.new_empty((tiles.splits, rows, heads, columns), dtype=torch.float32)
        part_sums = query.new_empty((tiles.splits, rows, heads), dtype=torch.float32)
    groups = heads // kv_heads
    tile_rows = max(DECODE_ROWS, triton.next_power_of_2(tiles.tokens * groups))
    # A run of a quantized block has grids of its own and is a step.
    step = block_size // packed.key_steps.shape[1] if packed else RAW_STEP
    unused = blocks.keys
    _attend[(len(tiles.table), kv_heads, tiles.splits)](
        query,
        turned,
        blocks.keys,
        blocks.values,
        packed.key_codes if packed else unused,
        packed.key_steps if packed else unused,
        packed.key_offsets if packed and packed.key_offsets is not None else unused,
        packed.value_codes if packed else unused,
        packed.value_steps if packed else unused,
        packed.value_offsets if packed and packed.value_offsets is not None else unused,
        tiles.table,
        tiles.blocks,
        parts,
        part_sums,
        scale,
        softcap or 1.0,
        window or 0,
        blocks.raw_slots,
        tiles.blocks.stride(0),
        query.stride(0),
        query.stride(1),
        turned.stride(0),
        turned.stride(1),
        rows,
        tiles.splits,
        HEADS=heads,
        KV_HEADS=kv_heads,
        GROUPS=groups,
        D=width,
        DV=value_width,
        PD=max(triton.next_power_of_2(width), 16),
        PV=max(triton.next_power_of_2(value_width), 16),
        HD=max(triton.next_power_of_2(width // 2), 16),
        HV=max(triton.next_power_of_2(value_width // 2), 16),
        BLOCK=block_size,
        ROWS=tile_rows,
        STEP=step,
        KEY_BITS=key_bits,
        VALUE_BITS=value_bits,
        WINDOWED=window is not None,
        CAPPED=softcap is not None,
        DOT=DOT_TYPES[torch.float32 if INTERPRETED else query.dtype],
        **launch_options(tile_rows, width * query.element_size(), key_bits),
    )
    if not direct:
        merge(parts, part_sums, tiles, out, sums)


def launch_options(tile_rows: int, key_bytes: int, key_bits: int) -> dict[str, int]:
    """Warps of a program and how far it loads ahead: wide keys leave no shared memory for that.

    A decode has little to compute, so loads must be under way all the time: those of codes, which are small
    and take many registers to restore, so that few programs share a processor, several steps ahead.
    """
    stages = 2
    if key_bytes > WIDE_KEY:
        stages = 1
    elif tile_rows <= DECODE_ROWS:
        stages = 3 if key_bits == 16 else 4
    return {"num_warps": 4 if tile_rows <= 64 else 8, "num_stages": stages}


# What differs from batch to batch is no reason to compile again, for seconds, while requests wait.
@triton.jit(do_not_specialize=["table_stride", "total_rows", "splits"])
def _attend(
    QUERY,
    TURNED,
    KEYS,
    VALUES,
    KEY_CODES,
    KEY_STEPS,
    KEY_OFFSETS,
    VALUE_CODES,
    VALUE_STEPS,
    VALUE_OFFSETS,
    TILES,
    TABLES,
    OUT,
    SUMS,
    scale,
    softcap,
    window,
    raw_slots,
    table_stride,
    query_stride,
    query_head,
    turned_stride,
    turned_head,
    total_rows,
    splits,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    PD: tl.constexpr,
    PV: tl.constexpr,
    HD: tl.constexpr,
    HV: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    KEY_BITS: tl.constexpr,
    VALUE_BITS: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    DOT: tl.constexpr,
):
    """Grid (tiles, kv heads, splits). TILES [n, 4]: sequence, first row, tokens, first position.

    PD and PV are D and DV up to a power of two, at least 16; HD and HV their halves: 4-bit codes come in
    two.
    """
    tile = TILES + tl.program_id(0) * 4
    head = tl.program_id(1)
    split = tl.program_id(2)
    sequence = tl.load(tile)
    first = tl.load(tile + 1)
    tokens = tl.load(tile + 2)
    start = tl.load(tile + 3)
    table = TABLES + sequence.to(tl.int64) * table_stride

    # Row r is token r // GROUPS with query head r % GROUPS of this key-value head.
    row = tl.arange(0, ROWS)
    token = row // GROUPS
    real = token < tokens
    query_heads = head * GROUPS + row % GROUPS
    position = start + token

    d = tl.arange(0, PD)
    dv = tl.arange(0, PV)
    hd = tl.arange(0, HD)
    hv = tl.arange(0, HV)
    at = (first + token).to(tl.int64) * query_stride + query_heads * query_head
    q = tl.load(QUERY + at[:, None] + d[None], mask=real[:, None] & (d < D)[None], other=0.0)
    factor = scale * LOG2E
    if KEY_BITS == 4:
        at = (first + token).to(tl.int64) * turned_stride + query_heads * turned_head
        near = real[:, None] & (hd < D // 2)[None]
        q_low = tl.load(TURNED + at[:, None] + hd[None], mask=near, other=0.0).to(tl.float32)
        q_high = tl.load(TURNED + at[:, None] + D // 2 + hd[None], mask=near, other=0.0).to(tl.float32)
    else:
        q_low = q
        q_high = q

    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, PV), tl.float32)
    acc_low = tl.zeros((ROWS, HV), tl.float32)
    acc_high = tl.zeros((ROWS, HV), tl.float32)

    high = start + tokens
    low = 0
    if WINDOWED:
        low = tl.maximum(start + 1 - window, 0) // STEP * STEP
    steps = tl.cdiv(tl.cdiv(high - low, STEP), splits)
    begin = low + split * steps * STEP
    end = tl.minimum(begin + steps * STEP, high)

    for at_key in range(begin, end, STEP):
        n = at_key + tl.arange(0, STEP)
        there = n < high
        if KEY_BITS == 16:
            where = _places(table, n, there, head, BLOCK, KV_HEADS)
            scores = _raw_scores(q, KEYS, where, there, d, D, DOT)
        else:
            entry = tl.load(table + at_key // BLOCK).to(tl.int64)
            raw = entry < raw_slots
            slot = tl.where(raw, entry, entry - raw_slots)
            where = (slot * BLOCK + at_key % BLOCK + tl.arange(0, STEP)) * KV_HEADS + head
            channel = ((slot * (BLOCK // STEP) + at_key % BLOCK // STEP) * KV_HEADS + head) * D
            # Loads in a branch are not begun a step ahead. So codes are read in any case: where the block is
            # raw, none are, and what is not read is 0.
            coded = there & (not raw)
            if KEY_BITS == 8:
                near = (d < D) & (not raw)
                scores = _int8_scores(q, KEY_CODES, KEY_STEPS + channel, where, coded, d, near, D, DOT)
            else:
                scores = _int4_scores(
                    q_low,
                    q_high,
                    KEY_CODES,
                    KEY_STEPS + channel,
                    KEY_OFFSETS + channel,
                    where,
                    coded,
                    hd,
                    (hd < D // 2) & (not raw),
                    D,
                    DOT,
                )
            if raw:
                scores += _raw_scores(q, KEYS, where, there, d, D, DOT)
        scores *= factor
        if CAPPED:
            # tanh(x) = 2 sigmoid(2 x) - 1
            capped = scores / (LOG2E * softcap)
            scores = softcap * LOG2E * (2.0 * tl.sigmoid(2.0 * capped) - 1.0)
        # Only the steps at the edges hide anything, but a branch would cost more than the comparison.
        seen = there[None] & (n[None] <= position[:, None])
        if WINDOWED:
            seen = seen & (n[None] > position[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))

        new_top = tl.maximum(top, tl.max(scores, 1))
        # A row that has seen nothing yet has no maximum: -inf - -inf would be NaN.
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(top - base)
        total = total * shrink + tl.sum(weights, 1)
        top = new_top
        acc *= shrink[:, None]
        if VALUE_BITS == 4:
            acc_low *= shrink[:, None]
            acc_high *= shrink[:, None]

        if VALUE_BITS == 16:
            acc += _raw_values(weights, VALUES, where, there, dv, DV, DOT)
        else:
            low_steps = wide_steps(tl.load(VALUE_STEPS + where * 2, mask=coded, other=0))
            high_steps = wide_steps(tl.load(VALUE_STEPS + where * 2 + 1, mask=coded, other=0))
            if VALUE_BITS == 8:
                every = coded[:, None] & (dv < DV)[None]
                codes = tl.load(VALUE_CODES + where[:, None] * DV + dv[None], mask=every, other=0)
                spread = tl.where((dv < DV // 2)[None], low_steps[:, None], high_steps[:, None])
                acc += _dot(weights, codes.to(tl.float32) * spread, DOT)
            else:
                half = coded[:, None] & (hv < DV // 2)[None]
                codes = tl.load(VALUE_CODES + where[:, None] * (DV // 2) + hv[None], mask=half, other=0)
                offsets = tl.load(VALUE_OFFSETS + where * 2, mask=coded, other=0)
                acc_low += _int4_values(weights, low_steps, offsets, codes & 15, DOT)
                offsets = tl.load(VALUE_OFFSETS + where * 2 + 1, mask=coded, other=0)
                acc_high += _int4_values(weights, high_steps, offsets, codes >> 4, DOT)
            if raw:
                acc += _raw_values(weights, VALUES, where, there, dv, DV, DOT)

    # A split without keys gets the sum -inf and weighs nothing.
    norm = tl.where(total == 0.0, 1.0, total)
    result = (split * total_rows + first + token).to(tl.int64) * HEADS + query_heads
    place = OUT + result[:, None] * (DV * 2 if VALUE_BITS == 4 else DV)
    tl.store(place + dv[None], acc / norm[:, None], mask=real[:, None] & (dv < DV)[None])
    if VALUE_BITS == 4:
        near = real[:, None] & (hv < DV // 2)[None]
        tl.store(place + DV + hv[None], acc_low / norm[:, None], mask=near)
        tl.store(place + DV + DV // 2 + hv[None], acc_high / norm[:, None], mask=near)
    tl.store(SUMS + result, (top + tl.log2(norm)) / LOG2E, mask=real)


@triton.jit
def _places(table, n, there, head, BLOCK: tl.constexpr, KV_HEADS: tl.constexpr):
    """Row of each position's key and value in [slots * block_size * kv_heads]."""
    slots = tl.load(table + n // BLOCK, mask=there, other=0).to(tl.int64)
    return (slots * BLOCK + n % BLOCK) * KV_HEADS + head


@triton.jit
def _raw_scores(q, KEYS, where, there, d, D: tl.constexpr, DOT: tl.constexpr):
    """q [rows, D] times keys, which are loaded [D, n]."""
    keys = tl.load(KEYS + where[None] * D + d[:, None], mask=there[None] & (d < D)[:, None], other=0)
    return _dot(q, keys, DOT)


@triton.jit
def _int8_scores(q, CODES, STEPS, where, there, d, near, D: tl.constexpr, DOT: tl.constexpr):
    """The steps of the run's channels are folded into q."""
    steps = wide_steps(tl.load(STEPS + d, mask=near, other=0))
    return _raw_scores(q.to(tl.float32) * steps[None], CODES, where, there, d, D, DOT)


@triton.jit
def _int4_scores(low, high, CODES, STEPS, OFFSETS, where, there, d, near, D: tl.constexpr, DOT: tl.constexpr):
    """As for int8, in two halves; the offsets add the same to a row's scores of all keys of the run."""
    codes = tl.load(CODES + where[None] * (D // 2) + d[:, None], mask=there[None] & near[:, None], other=0)
    # Codes and offsets nearly cancel, so both must meet the same rounded numbers.
    low = (low * wide_steps(tl.load(STEPS + d, mask=near, other=0))[None]).to(DOT)
    offsets = tl.load(OFFSETS + d, mask=near, other=0).to(tl.float32)
    scores = _dot(low, codes & 15, DOT) + tl.sum(low.to(tl.float32) * offsets[None], 1)[:, None]
    high = (high * wide_steps(tl.load(STEPS + D // 2 + d, mask=near, other=0))[None]).to(DOT)
    offsets = tl.load(OFFSETS + D // 2 + d, mask=near, other=0).to(tl.float32)
    return scores + _dot(high, codes >> 4, DOT) + tl.sum(high.to(tl.float32) * offsets[None], 1)[:, None]


@triton.jit
def _int4_values(weights, steps, offsets, codes, DOT: tl.constexpr):
    """weights [rows, n] times one half of the values' codes [n, Dv / 2] on each token's grid."""
    scaled = (weights * steps[None]).to(DOT)
    constant = tl.sum(scaled.to(tl.float32) * offsets.to(tl.float32)[None], 1)
    return _dot(scaled, codes, DOT) + constant[:, None]


@triton.jit
def wide_steps(steps):
    """Steps, of which the upper half of an fp16 is stored, as float32."""
    return (steps.to(tl.int16) << 7).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _raw_values(weights, VALUES, where, there, dv, DV: tl.constexpr, DOT: tl.constexpr):
    """weights [rows, n] times values [n, Dv]."""
    values = tl.load(VALUES + where[:, None] * DV + dv[None], mask=there[:, None] & (dv < DV)[None], other=0)
    return _dot(weights, values, DOT)


@triton.jit
def _dot(left, right, DOT: tl.constexpr):
    """left @ right, multiplied in DOT, summed in float32."""
    return tl.dot(left.to(DOT), right.to(DOT), input_precision="ieee")


def attend_reference(
    query: Tensor,
    blocks: LayerBlocks,
    tiles: Tiles,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
    out: Tensor,
    sums: Tensor,
) -> None:
    """`attend` row by row in float64, with every block restored first."""
    kv_heads = blocks.keys.shape[2]
    groups = query.shape[1] // kv_heads
    for sequence, first, tokens, start in tiles.table.tolist():
        block_size = blocks.keys.shape[1]
        table = tiles.blocks[sequence, : -(-(start + tokens) // block_size)].tolist()
        pairs = [blocks.block(entry) for entry in table]
        keys = torch.cat([keys for keys, _ in pairs]).double().repeat_interleave(groups, 1)
        values = torch.cat([values for _, values in pairs]).double().repeat_interleave(groups, 1)
        for token in range(tokens):
            high = start + token + 1
            low = 0 if window is None else max(high - window, 0)
            scores = torch.einsum("hd,nhd->hn", query[first + token].double(), keys[low:high]) * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            sums[first + token] = torch.logsumexp(scores, -1).float()
            weights = torch.softmax(scores, -1)
            out[first + token] = torch.einsum("hn,nhd->hd", weights, values[low:high]).to(out.dtype)
