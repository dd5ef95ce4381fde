"""Merge of attention over disjoint sets of keys, by the log-sum-exp of each."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvtool.engine.compute.kernels.layers import rotation
from kvtool.engine.compute.kernels.tables import Tiles


def merge(parts: Tensor, part_sums: Tensor, tiles: Tiles, out: Tensor, sums: Tensor) -> None:
    """Rows of the tiles of `parts` [splits, T, H, C] and `part_sums` [splits, T, H] into `out` and `sums`.

    C is Dv, or 2 Dv where the second half is still rotated. out: [T, H, Dv]. All but `out` are float32.
    """
    splits, rows, heads, columns = parts.shape
    merged = parts.new_empty((rows, heads, columns)) if columns != out.shape[2] else out
    _merge[(len(tiles.table) * tiles.tokens, heads)](
        parts,
        part_sums,
        tiles.table,
        merged,
        sums,
        rows,
        splits,
        HEADS=heads,
        COLUMNS=columns,
        TOKENS=tiles.tokens,
        PC=triton.next_power_of_2(columns),
        PS=triton.next_power_of_2(splits),
    )
    if columns != out.shape[2]:
        straight, turned = merged.chunk(2, -1)
        whole = straight + turned @ rotation(out.shape[2], out.device)
        index = tiles.rows
        out.index_copy_(0, index, whole.index_select(0, index).to(out.dtype))


@triton.jit(do_not_specialize=["rows", "splits"])
def _merge(
    PARTS,
    PART_SUMS,
    TILES,
    OUT,
    SUMS,
    rows,
    splits,
    HEADS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TOKENS: tl.constexpr,
    PC: tl.constexpr,
    PS: tl.constexpr,
):
    """Grid (tiles * TOKENS, heads). PC and PS are COLUMNS and splits up to a power of two."""
    tile = TILES + tl.program_id(0) // TOKENS * 4
    token = tl.program_id(0) % TOKENS
    if token < tl.load(tile + 2):
        row = (tl.load(tile + 1) + token).to(tl.int64)
        head = tl.program_id(1)
        split = tl.arange(0, PS)
        column = tl.arange(0, PC)
        place = (split.to(tl.int64) * rows + row) * HEADS + head
        each = tl.load(PART_SUMS + place, mask=split < splits, other=float("-inf"))
        # The split with a row's own key has a sum, so the maximum is a number.
        top = tl.max(each, 0)
        weights = tl.exp(each - top)
        total = tl.sum(weights, 0)
        parts = tl.load(
            PARTS + place[:, None] * COLUMNS + column[None],
            mask=(split < splits)[:, None] & (column < COLUMNS)[None],
            other=0.0,
        )
        result = tl.sum(parts * (weights / total)[:, None], 0)
        tl.store(OUT + (row * HEADS + head) * COLUMNS + column, result, mask=column < COLUMNS)
        tl.store(SUMS + row * HEADS + head, top + tl.log(total))


def merge_reference(parts: Tensor, part_sums: Tensor) -> tuple[Tensor, Tensor]:
    """Merged (parts [T, H, C], sums [T, H]) in float64."""
    sums = torch.logsumexp(part_sums.double(), 0)
    weights = torch.exp(part_sums.double() - sums)
    return (parts.double() * weights[..., None]).sum(0), sums
