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

PROGRAMS_PER_PROCESSOR = 2
"""Programs that a decode launch should offer each multiprocessor."""

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
    processors: int
    _tiles: dict[tuple[int, int, int], list[Tiles]] = field(default_factory=dict)

    def tiles(self, groups: int, kv_heads: int, key_bytes: int) -> list[Tiles]:
        """As in `Tiling`."""
        rows = TILE_ROWS if key_bytes <= WIDE_KEY else TILE_ROWS // 4
        key = groups, kv_heads, rows
        if key not in self._tiles:
            tokens = max(rows // groups, 1)
            self._tiles[key] = make_tiles(self.spans, tokens, kv_heads, self.processors, self.device)
        return self._tiles[key]


def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; 1 for anything else."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def block_tables(spans: Sequence[Span], device: torch.device) -> Tensor:
    """int32 [spans, most blocks], padded with 0."""
    most = max(len(span.slots) for span in spans)
    table = torch.zeros(len(spans), most, dtype=torch.int32)
    for number, span in enumerate(spans):
        table[number, : len(span.slots)] = torch.tensor(span.slots, dtype=torch.int32)
    return upload(table, device)


def make_tiles(
    spans: Sequence[Span], tokens: int, kv_heads: int, processors: int, device: torch.device
) -> list[Tiles]:
    """Tiles of prefill chunks, and those of decodes (spans of one token) with their keys split.

    tokens: most of a prefill tile. processors: multiprocessors of the device, to be kept busy.
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
        found.append(_tiles(decodes, blocks, 1, splits(len(decodes) * kv_heads, longest, processors)))
    return found


def splits(programs: int, longest: int, processors: int) -> int:
    """Pieces to cut the keys of `programs` decodes into, the longest of which has `longest` of them."""
    wanted = -(-processors * PROGRAMS_PER_PROCESSOR // programs)
    return max(1, min(wanted, longest // SPLIT_TOKENS))


def _tiles(rows: list[tuple[int, int, int, int]], blocks: Tensor, tokens: int, splits: int) -> Tiles:
    index = torch.cat([torch.arange(first, first + count) for _, first, count, _ in rows])
    table = upload(torch.tensor(rows, dtype=torch.int32), blocks.device)
    return Tiles(table, blocks, tokens, splits, upload(index, blocks.device))
