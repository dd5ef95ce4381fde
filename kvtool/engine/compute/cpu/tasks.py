"""What a packed batch attends to, as tasks for the CPU workers: planned once a step for each window."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvtool.engine.compute.cpu.kernel import KEYS, TILE
from kvtool.engine.compute.cpu.vector import LANES
from kvtool.engine.compute.reads import Span, common_blocks

CHUNK = 512
"""Keys of a task at most. Tasks begin at its multiples, whatever else is in the batch, so that a row's output
is the same bits in every batch and after every cut of its prompt. With 64 channels they are 256 KB."""

OVERHEAD = 32
"""What a task costs beside its keys, in keys."""

Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tasks:
    """Arrays for `kernel.py`, all int64.

    tasks: [n, 6], the same for each key-value head. rows: lane i of a task is row rows[i // group] of the
    batch. positions: of the batch's rows. tables: block tables, one after the other. costs: of each task.
    lane_parts, from lane_starts[i] on: the parts that lane i of the batch is merged from. parts: how many
    there are.
    """

    tasks: Array
    rows: Array
    positions: Array
    tables: Array
    costs: Array
    lane_parts: Array
    lane_starts: Array
    parts: int


@dataclass(frozen=True, slots=True)
class _Read:
    """Rows that read positions [low, high) of one block table; `first`: where they begin in the list."""

    first: int
    rows: Array
    table: int
    low: int
    high: int


def runs(spans: Sequence[Span], parts: int, window: int | None) -> list[tuple[int, list[Span]]]:
    """A batch cut into runs of rows that have at most `parts` parts in each query head, or of one row.

    Of each its first row, and its spans as a batch of their own. The next run reads the same keys again, so
    that runs are long and, as far as that goes, whole tiles.
    """
    found: list[tuple[int, list[Span]]] = []
    left = 0
    for span in spans:
        each = -(-span.end // CHUNK)
        if window is not None:
            each = min(each, window // CHUNK + 2)
        row = span.first
        while row < span.last:
            rows = min(left // each, span.last - row)
            if TILE < rows < span.last - row:
                rows -= rows % TILE
            if not rows:
                found.append((row, []))
                left = max(parts, each)
                continue
            begin, wave = found[-1]
            wave.append(Span(row - begin, row - begin + rows, span.start + row - span.first, span.slots))
            left -= rows * each
            row += rows
            if row < span.last:
                left = 0
    return found


def plan(spans: Sequence[Span], block_size: int, group: int, window: int | None) -> Tasks:
    """Tasks for a run whose spans follow each other. group: query heads of a key-value head."""
    positions = np.concatenate([np.arange(span.start, span.end) for span in spans])
    reads = list(_reads(spans, block_size, window))
    tasks = np.array([task for read in reads for task in _cut(read, positions, group, window)], np.int64)
    lanes = tasks[:, 1] - tasks[:, 0]
    tasks[:, 5] = np.cumsum(lanes) - lanes
    rows = np.concatenate([read.rows for read in reads])
    list_lanes = np.concatenate([np.arange(first, last) for first, last in tasks[:, :2]])
    owners = rows[list_lanes // group] * group + list_lanes % group
    return Tasks(
        tasks=tasks,
        rows=rows,
        positions=positions,
        tables=np.concatenate([np.asarray(span.slots, np.int64) for span in spans]),
        costs=-(-lanes // LANES) * (tasks[:, 4] - tasks[:, 3] + OVERHEAD),
        lane_parts=np.argsort(owners, kind="stable"),
        lane_starts=np.cumsum([0, *np.bincount(owners, minlength=len(positions) * group)]),
        parts=int(lanes.sum()),
    )


def _reads(spans: Sequence[Span], block_size: int, window: int | None) -> Iterator[_Read]:
    """What sequences have in common is read for all of their rows at once, as far as whole tasks go."""
    tables = dict(zip((span.first for span in spans), _starts(spans), strict=True))
    begins = dict.fromkeys(tables, 0)
    listed = 0
    whole = [span for span in spans if window is None or span.end <= window]
    for group, _, blocks in common_blocks(whole, block_size):
        low, high = begins[group[0].first], blocks * block_size // CHUNK * CHUNK
        if low < high:
            rows = np.concatenate([np.arange(span.first, span.last) for span in group])
            yield _Read(listed, rows, tables[group[0].first], low, high)
            listed += len(rows)
            begins.update((span.first, high) for span in group)
    for span in spans:
        rows = np.arange(span.first, span.last)
        yield _Read(listed, rows, tables[span.first], begins[span.first], span.end)
        listed += len(rows)


def _starts(spans: Sequence[Span]) -> list[int]:
    """Where the spans' tables begin, one after the other."""
    return [0, *np.cumsum([len(span.slots) for span in spans[:-1]]).tolist()]


def _cut(
    read: _Read, positions: Array, group: int, window: int | None
) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Tasks without the numbers of their parts. Tiles that read the same keys follow each other."""
    end = len(read.rows) * group
    for low in range(read.low, read.high, CHUNK):
        for lane in range(0, end, TILE):
            last = min(lane + TILE, end)
            seen = positions[read.rows[lane // group : (last - 1) // group + 1]]
            oldest = 0 if window is None else int(seen.min()) + 1 - window
            begin = max(low, oldest // KEYS * KEYS)
            until = min(low + CHUNK, read.high, int(seen.max()) + 1)
            if begin < until:
                first = read.first * group
                yield first + lane, first + last, read.table, begin, until, 0


def shares(costs: Array, heads: int, workers: int) -> Array:
    """Where each worker's tasks begin among those of all heads, head by head, [workers + 1]: consecutive ones
    of about the same cost."""
    costs = np.tile(costs, heads)
    middles = np.cumsum(costs) - costs / 2
    between = np.searchsorted(middles, costs.sum() * np.arange(1, workers) / workers)
    return np.array([0, *between, len(costs)], np.int64)
