"""The whole LRU capacity curve in one pass over the log (Mattson et al., 1970).

A request's blocks go to the top of one recency stack, tail first, so a parent always lies above its
children and the top C blocks are what an LRU cache of C blocks holds. A block's depth in the stack
when it is asked for is the smallest capacity that would have served it. A run's blocks lie side by side
for good, so it is one entry of the stack, as high as it has blocks.
"""

from typing import Any

import numpy as np
from numba import types

from kvtool.analysis.flops import TYPICAL, Prefill
from kvtool.analysis.hit_rates import ratio
from kvtool.analysis.rates import Rates
from kvtool.analysis.workload import PromptTree
from kvtool.compiling import njit

SHARES = (0.01, 0.03, 0.05, 0.1, 0.3, 1.0)
"""Capacities at which a curve is reported, as shares of the distinct blocks."""

GROUP = 64
"""Positions of the stack that one entry of the tree counts."""

MOST_STEPS = 1 << 22
"""Capacities at which a curve is known, evenly spread: all of them below as many distinct blocks."""


class LruCurve:
    """Hit rates of LRU at every multiple of `step` blocks, which is every capacity unless a log has millions
    of distinct blocks."""

    def __init__(self, workload: PromptTree, prefill: Prefill = TYPICAL) -> None:
        distinct = workload.distinct_blocks
        self.step = step_of(distinct)
        counts = np.zeros((4, -(-distinct // self.step) + 1), np.int64)
        weights = np.zeros(counts[:2].shape)
        _stack_distances(
            workload.leaf,
            workload.parent,
            workload.depth,
            workload.depth + 1 - workload.above,
            workload.prompt_tokens,
            workload.block_size,
            prefill.linear,
            prefill.attention,
            self.step,
            counts,
            weights,
        )
        self._sums = np.cumsum(counts, axis=1, out=counts)
        self._means, self._flops = np.cumsum(weights, axis=1, out=weights)
        self._tokens = int(workload.prompt_tokens.sum())
        self._all_flops = float(prefill.cost(workload.prompt_tokens).sum())
        self._blocks = int(workload.lengths.sum())
        self._requests = workload.requests

    def at(self, capacity: int) -> Rates:
        """Rates with room for `capacity` blocks; a request longer than that keeps its first blocks."""
        last = min(capacity // self.step, len(self._means) - 1)
        blocks, capped, full, uncapped = (int(count) for count in self._sums[:, last])
        return Rates(
            tokens=ratio(capped, self._tokens),
            tokens_full=ratio(full, self._tokens),
            tokens_uncapped=ratio(uncapped, self._tokens),
            blocks=ratio(blocks, self._blocks),
            request_mean=ratio(float(self._means[last]), self._requests),
            rebuild_flops_saved=ratio(float(self._flops[last]), self._all_flops),
            hit_blocks=blocks,
        )

    def capacity_for(self, share: float) -> int:
        """Fewest blocks that reach `share` of the reusable tokens that an unbounded cache serves."""
        capped = self._sums[1]
        return int(np.searchsorted(capped, share * capped[-1], side="left")) * self.step


def step_of(distinct: int) -> int:
    """Blocks between two capacities at which the curve of a log with `distinct` blocks is known."""
    return max(-(-distinct // MOST_STEPS), 1)


def capacities(workload: PromptTree) -> list[int]:
    """The reported capacities in blocks, ascending, without repeats."""
    distinct = workload.distinct_blocks
    step = step_of(distinct)
    return sorted({max(-(-round(share * distinct) // step), 1) * step for share in SHARES})


@njit(types.void(types.int64[::1], types.int64, types.int64), cache=True)
def _add(tree: Any, at: Any, value: Any) -> None:
    while at < tree.size:
        tree[at] += value
        at += at & -at


@njit(types.int64(types.int64[::1], types.int32[::1], types.int32[::1], types.int64), cache=True)
def _below(tree: Any, height: Any, run_at: Any, at: Any) -> Any:
    """Blocks before position `at`: of whole groups from the tree, of its own group one by one."""
    group = at // GROUP
    total = 0
    for position in range(group * GROUP, at):
        if run_at[position] >= 0:
            total += height[run_at[position]]
    while group > 0:
        total += tree[group]
        group -= group & -group
    return total


@njit(types.int64(types.int64[::1], types.int32[::1], types.int32[::1], types.int64[::1]), cache=True)
def _compact(tree: Any, height: Any, run_at: Any, position: Any) -> Any:
    """Close the gaps that moved runs left; returns the first unused position."""
    live = 1
    for at in range(1, run_at.size):
        run = run_at[at]
        if run >= 0:
            run_at[at] = -1
            run_at[live] = run
            position[run] = live
            live += 1
    tree[:] = 0
    for at in range(1, live):
        tree[at // GROUP + 1] += height[run_at[at]]
    for at in range(1, tree.size):
        above = at + (at & -at)
        if above < tree.size:
            tree[above] += tree[at]
    return live


@njit(
    types.void(
        types.int32[::1],
        types.int32[::1],
        types.int32[::1],
        types.int32[::1],
        types.int64[::1],
        types.int64,
        types.float64,
        types.float64,
        types.int64,
        types.int64[:, ::1],
        types.float64[:, ::1],
    ),
    cache=True,
)
def _stack_distances(
    leaf: Any,
    parent: Any,
    depth: Any,
    height: Any,
    prompt_tokens: Any,
    block_size: Any,
    linear: Any,
    attention: Any,
    step: Any,
    counts: Any,
    weights: Any,
) -> None:
    """Adds each hit block to column `distance` (in steps, rounded up) of counts (blocks, capped, full and all
    tokens) and of weights (share of its request, FLOPs that it saves).

    Positions of the stack grow towards its top; a Fenwick tree over groups of them counts the blocks that
    are there. A request's runs lie side by side, so whoever moved together is counted and moved together.
    """
    longest: Any = 0
    for request in range(leaf.size):
        length = 0
        run = leaf[request]
        while run >= 0:
            length += 1
            run = parent[run]
        longest = max(longest, length)
    room = 2 * parent.size + longest + 2
    tree = np.zeros(room // GROUP + 2, np.int64)
    run_at = np.full(room, -1, np.int32)
    position = np.zeros(parent.size, np.int64)
    path = np.empty(longest, np.int32)
    live = 0
    top = 1
    for request in range(leaf.size):
        run = leaf[request]
        blocks = np.int64(depth[run]) + 1 if run >= 0 else 0
        length = 0
        while run >= 0:
            path[length] = run
            length += 1
            run = parent[run]
        tokens = prompt_tokens[request]
        full, reusable = tokens // block_size, (tokens - 1) // block_size
        if top + length > room:
            top = _compact(tree, height, run_at, position)
        distance, before, i = 0, -1, 0
        for number in range(length - 1, -1, -1):
            run = path[number]
            at = position[run]
            if at == 0:
                break
            if at != before - 1:
                distance = live - _below(tree, height, run_at, at) - height[run]
            before = at
            for _ in range(height[run]):
                distance += 1
                column = distance if step == 1 else (distance + step - 1) // step
                counts[0, column] += 1
                if i < reusable:
                    counts[1, column] += block_size
                    attended = block_size * (i * block_size + (block_size - 1) / 2)
                    weights[1, column] += linear * block_size + attention * attended
                if i < full:
                    counts[2, column] += block_size
                counts[3, column] += min((i + 1) * block_size, tokens) - min(i * block_size, tokens)
                weights[0, column] += 1.0 / blocks
                i += 1
        group: Any = 0
        moved: Any = 0  # blocks that leave `group`, not yet taken from the tree
        for number in range(length):
            run = path[number]
            at = position[run]
            if at > 0:
                if at // GROUP != group and moved > 0:
                    _add(tree, group + 1, -moved)
                    moved = 0
                group = at // GROUP
                moved += height[run]
                run_at[at] = -1
            else:
                live += height[run]
            position[run] = top + number
            run_at[position[run]] = run
        if moved > 0:
            _add(tree, group + 1, -moved)
        end = top + length
        while top < end:
            group = top // GROUP + 1
            placed: Any = 0
            while top < end and top // GROUP + 1 == group:
                placed += height[run_at[top]]
                top += 1
            _add(tree, group, placed)
