"""From each use of a block to its next: the waits that the reuse model learns from.

Blocks of one request that were last used together and share their traits wait together: one row.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvtool.analysis.workload import Workload
from kvtool.cache import core
from kvtool.cache.aging import conclude, observe
from kvtool.cache.reuse_table import CLASS_SHIFT, ReuseTable
from kvtool.compiling import njit

STUMP = ReuseTable(np.array([[-1, 0, 0, 0]]), np.zeros(0), np.zeros((1, 1)), False)
"""Every block in one class: enough to have traits noted."""


class Pieces(NamedTuple):
    """Waits cut at ages and at times of the log: which wait, age step, period, seconds, ended in it."""

    wait: NDArray[np.int64]
    age: NDArray[np.int64]
    period: NDArray[np.int64]
    seconds: NDArray[np.float64]
    ended: NDArray[np.bool_]


@dataclass(frozen=True)
class Waits:
    """w rows. traits: packed codes. start, duration: seconds. ended: by a next use; else by the log's end.
    blocks: how many waited together. partial_ends: prompts end in a partial block, which counts."""

    traits: NDArray[np.int64]
    start: NDArray[np.float64]
    duration: NDArray[np.float64]
    ended: NDArray[np.bool_]
    blocks: NDArray[np.float64]
    end: float
    partial_ends: bool

    def until(self, time: float) -> "Waits":
        """What was known at `time`: no wait that began later, none that ended later."""
        keep = self.start < time
        end = min(time, self.end)
        left = np.maximum(end - self.start[keep], 1e-3)
        return replace(
            self,
            traits=self.traits[keep],
            start=self.start[keep],
            duration=np.minimum(self.duration[keep], left),
            ended=self.ended[keep] & (self.start[keep] + self.duration[keep] < time),
            blocks=self.blocks[keep],
            end=end,
        )

    def pieces(self, edges: NDArray[np.float64], bounds: NDArray[np.float64]) -> Pieces:
        """Cut at the ages `edges` and at the times `bounds`, both rising."""
        size = len(self.start) * (len(edges) + len(bounds) + 1)
        wait, age, period = (np.empty(size, np.int64) for _ in range(3))
        seconds, ended = np.empty(size), np.zeros(size, np.bool_)
        used = _cut(self.start, self.duration, self.ended, edges, bounds, wait, age, period, seconds, ended)
        return Pieces(wait[:used], age[:used], period[:used], seconds[:used], ended[:used])


def waits_of(workload: Workload) -> Waits:
    """All waits of a log; traits are noted by the very code that the running pool notes them with."""
    parameters = STUMP.parameters(workload.block_size)
    state = core.new_state(workload.distinct_blocks, 1, parameters)
    state = state._replace(parent=np.array(workload.parent), depth=np.array(workload.depth))
    accesses = len(workload.nodes)
    traits = np.empty(accesses, np.int64)
    start, duration, blocks = np.empty(accesses), np.empty(accesses), np.empty(accesses)
    ended = np.zeros(accesses, np.bool_)
    end = float(workload.clock[-1]) if workload.requests else 0.0
    rows = _collect(
        state,
        workload.nodes,
        workload.offsets,
        workload.clock,
        workload.output_tokens,
        end,
        traits,
        start,
        duration,
        ended,
        blocks,
    )
    return Waits(
        traits[:rows] & ((1 << CLASS_SHIFT) - 1),
        start[:rows],
        duration[:rows],
        ended[:rows],
        blocks[:rows],
        end,
        bool(workload.partial.any()),
    )


@njit(cache=True)
def _collect(  # type: ignore[no-untyped-def]
    s, nodes, offsets, clock, output_tokens, end, traits, start, duration, ended, blocks
):
    rows = 0
    for request in range(clock.size + 1):
        if request < clock.size:
            path = nodes[offsets[request] : offsets[request + 1]]
            now = clock[request]
        else:  # the waits that nothing ended: every block, once; neighbours in number often wait together
            path = np.arange(s.touches.size).astype(np.int32)
            now = end
        before = -1
        for node in path:
            if s.touches[node] == 0:
                continue
            together = before >= 0 and s.traits[node] == s.traits[before] and s.turn[node] == s.turn[before]
            if together:
                blocks[rows - 1] += 1
            else:
                traits[rows] = s.traits[node]
                start[rows] = s.last[node]
                duration[rows] = max(now - s.last[node], 1e-3)
                ended[rows] = request < clock.size
                blocks[rows] = 1
                rows += 1
            before = node
        if request < clock.size:
            observe(s, path, now)
            for node in path:
                s.touches[node] += 1
                s.last[node] = now
                s.turn[node] = request
            conclude(s, path, output_tokens[request])
    return rows


@njit(cache=True)
def _cut(  # type: ignore[no-untyped-def]
    start, duration, ended_at_last, edges, bounds, wait, age, period, seconds, ended
):
    used = 0
    for row in range(start.size):
        at, step = 0.0, 0
        span = np.searchsorted(bounds, start[row], side="right")
        while True:
            stop, which = duration[row], 0
            if step < edges.size and edges[step] < stop:
                stop, which = edges[step], 1
            if span < bounds.size and bounds[span] - start[row] < stop:
                stop, which = bounds[span] - start[row], 2
            wait[used], age[used], period[used], seconds[used] = row, step, span, stop - at
            used += 1
            at = stop
            if which == 0:
                ended[used - 1] = ended_at_last[row]
                break
            if which == 1:
                step += 1
            else:
                span += 1
    return used
