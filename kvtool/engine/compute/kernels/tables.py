"""A packed batch as the kernels want it: block tables and tiles of rows, as int32 tensors on the device."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from kvtool.engine.compute.device import upload
from kvtool.engine.compute.reads import Span

TILE_ROWS = 128
"""Rows (tokens x query heads of a group) of a prefill tile, for keys of up to WIDE_KEY bytes."""

WIDE_KEY = 256
"""Wider keys get tiles of a quarter of the rows, which fit in the shared memory of every GPU."""

RAW_PROGRAMS, QUANTIZED_PROGRAMS = 4, 2
"""Programs of decodes that a multiprocessor holds at a time, by the registers that they take."""

SPLIT_TOKENS = 256
"""Keys that make a split worth its merge."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Rows that attend together.

    table: int32 [n, 4], a tile's sequence, first row in the batch, number of tokens, position of the
    first. blocks: int32 [sequences, most blocks], block tables; entries beyond a sequence's end are 0.
    tokens: most tokens of a tile. splits: programs that share a tile's keys. rows: int64, all rows.
    """

    table: Tensor
    blocks: Tensor
    tokens: int
    splits: int
    rows: Tensor


class Tiling(Protocol):
    """What the kernels are told of a batch."""

    def tiles(self, groups: int, kv_heads: int, key_bytes: int) -> list[Tiles]:
        """For layers with `kv_heads` key-value heads of `groups` query heads each; a key has `key_bytes`."""
        ...


@dataclass
class TilePlan:
    """The tiles of a packed batch, for every head count that the model's layers have."""

    spans: Sequence[Span]
    device: torch.device
    at_once: int
    _tiles: dict[tuple[int, int, int], list[Tiles]] = field(default_factory=dict)

    def tiles(self, groups: int, kv_heads: int, key_bytes: int) -> list[Tiles]:
        """As in `Tiling`."""
        rows = TILE_ROWS if key_bytes <= WIDE_KEY else TILE_ROWS // 4
        key = groups, kv_heads, rows
        if key not in self._tiles:
            tokens = max(rows // groups, 1)
            self._tiles[key] = make_tiles(self.spans, tokens, kv_heads, self.at_once, self.device)
        return self._tiles[key]


def programs_at_once(device: torch.device, quantized: bool) -> int:
    """Programs of decodes that a GPU runs at a time; 1 for anything else."""
    if device.type != "cuda":
        return 1
    each = QUANTIZED_PROGRAMS if quantized else RAW_PROGRAMS
    return each * torch.cuda.get_device_properties(device).multi_processor_count


def block_tables(spans: Sequence[Span], device: torch.device) -> Tensor:
    """int32 [spans, most blocks], padded with 0."""
    most = max(len(span.slots) for span in spans)
    table = torch.zeros(len(spans), most, dtype=torch.int32)
    for number, span in enumerate(spans):
        table[number, : len(span.slots)] = torch.tensor(span.slots, dtype=torch.int32)
    return upload(table, device)


def make_tiles(
    spans: Sequence[Span], tokens: int, kv_heads: int, at_once: int, device: torch.device
) -> list[Tiles]:
    """Tiles of prefill chunks, and those of decodes (spans of one token) with their keys split.

    tokens: most of a prefill tile. at_once: programs that the device runs at a time.
    """
    blocks = block_tables(spans, device)
    prefills, decodes = [], []
    for number, span in enumerate(spans):
        if span.last - span.first == 1:
            decodes.append((number, span.first, 1, span.start))
        for first in range(span.first, span.last, tokens) if span.last - span.first > 1 else ():
            count = min(tokens, span.last - first)
            prefills.append((number, first, count, span.start + first - span.first))
    # The last tile of a chunk has the most keys: those programs start first.
    prefills.reverse()
    found = []
    if prefills:
        found.append(_tiles(prefills, blocks, tokens, 1))
    if decodes:
        longest = max(start for _, _, _, start in decodes) + 1
        found.append(_tiles(decodes, blocks, 1, splits(len(decodes) * kv_heads, longest, at_once)))
    return found


def splits(programs: int, longest: int, at_once: int) -> int:
    """Pieces to cut the keys of `programs` decodes into, the longest of which has `longest` of them.

    No more than run at a time: a few pieces left over would take as long as all the others.
    """
    return max(1, min(at_once // programs, longest // SPLIT_TOKENS))


def _tiles(rows: list[tuple[int, int, int, int]], blocks: Tensor, tokens: int, splits: int) -> Tiles:
    index = torch.cat([torch.arange(first, first + count) for _, first, count, _ in rows])
    table = upload(torch.tensor(rows, dtype=torch.int32), blocks.device)
    return Tiles(table, blocks, tokens, splits, upload(index, blocks.device))
