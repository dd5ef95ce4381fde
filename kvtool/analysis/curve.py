"""The whole LRU capacity curve in one pass over the log (Mattson et al., 1970).

A request's blocks go to the top of one recency stack, tail first, so a parent always lies above its
children and the top C blocks are what an LRU cache of C blocks holds. A block's depth in the stack
when it is asked for is the smallest capacity that would have served it.
"""

from typing import Any

import numpy as np
from numba import njit, types

from kvtool.analysis.flops import TYPICAL, Prefill
from kvtool.analysis.hit_rates import ratio
from kvtool.analysis.rates import Rates
from kvtool.analysis.workload import Workload

SHARES = (0.01, 0.03, 0.05, 0.1, 0.3, 1.0)
"""Capacities at which a curve is reported, as shares of the distinct blocks."""

GROUP = 64
"""Positions of the stack that one entry of the tree counts."""


class LruCurve:
    """Hit rates of LRU at every capacity."""

    def __init__(self, workload: Workload, prefill: Prefill = TYPICAL) -> None:
        counts = np.zeros((4, workload.distinct_blocks + 1), np.int64)
        weights = np.zeros((2, workload.distinct_blocks + 1))
        _stack_distances(
            workload.leaf,
            workload.parent,
            workload.depth,
            workload.prompt_tokens,
            workload.block_size,
            prefill.linear,
            prefill.attention,
            counts,
            weights,
        )
        self._sums = np.cumsum(counts, axis=1)
        self._means, self._flops = np.cumsum(weights, axis=1)
        self._tokens = int(workload.prompt_tokens.sum())
        self._all_flops = float(prefill.cost(workload.prompt_tokens).sum())
        self._blocks = int(workload.lengths.sum())
        self._requests = workload.requests

    def at(self, capacity: int) -> Rates:
        """Rates with room for `capacity` blocks; a request longer than that keeps its first blocks."""
        last = min(capacity, len(self._means) - 1)
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
        return int(np.searchsorted(capped, share * capped[-1], side="left"))


def capacities(workload: Workload) -> list[int]:
    """The reported capacities in blocks, ascending, without repeats."""
    return sorted({max(round(share * workload.distinct_blocks), 1) for share in SHARES})


@njit(types.void(types.int32[::1], types.int64, types.int32), cache=True)
def _add(tree: Any, at: Any, value: Any) -> None:
    while at < tree.size:
        tree[at] += value
        at += at & -at


@njit(types.int64(types.int32[::1], types.int32[::1], types.int64), cache=True)
def _above(tree: Any, node_at: Any, at: Any) -> Any:
    """Live positions before `at`: of whole groups from the tree, of its own group one by one."""
    group = at // GROUP
    total = 0
    for position in range(group * GROUP, at):
        total += node_at[position] >= 0
    while group > 0:
        total += tree[group]
        group -= group & -group
    return total


@njit(types.int64(types.int32[::1], types.int32[::1], types.int64[::1]), cache=True)
def _compact(tree: Any, node_at: Any, position: Any) -> Any:
    """Close the gaps that moved blocks left; returns the first unused position."""
    live = 1
    for at in range(1, node_at.size):
        node = node_at[at]
        if node >= 0:
            node_at[at] = -1
            node_at[live] = node
            position[node] = live
            live += 1
    tree[:] = 0
    for at in range(1, live):
        tree[at // GROUP + 1] += 1
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
        types.int64[::1],
        types.int64,
        types.float64,
        types.float64,
        types.int64[:, ::1],
        types.float64[:, ::1],
    ),
    cache=True,
)
def _stack_distances(
    leaf: Any,
    parent: Any,
    depth: Any,
    prompt_tokens: Any,
    block_size: Any,
    linear: Any,
    attention: Any,
    counts: Any,
    weights: Any,
) -> None:
    """Adds each hit block to column `distance` of counts (blocks, capped, full and all tokens) and of
    weights (share of its request, FLOPs that it saves).

    Positions of the stack grow towards its top; a Fenwick tree over groups of them counts those that are
    live. A request's blocks lie side by side, so whoever moved together is counted and moved together.
    """
    distinct = counts.shape[1] - 1
    longest: Any = 0
    for request in range(leaf.size):
        if leaf[request] >= 0:
            longest = max(longest, np.int64(depth[leaf[request]]) + 1)
    room = 2 * distinct + longest + 2
    tree = np.zeros(room // GROUP + 2, np.int32)
    node_at = np.full(room, -1, np.int32)
    position = np.zeros(distinct, np.int64)
    path = np.empty(longest, np.int32)
    live = 0
    top = 1
    for request in range(leaf.size):
        node = leaf[request]
        length = np.int64(depth[node]) + 1 if node >= 0 else 0
        tokens = prompt_tokens[request]
        for i in range(length - 1, -1, -1):
            path[i] = node
            node = parent[node]
        if top + length > room:
            top = _compact(tree, node_at, position)
        distance, before = 0, -1
        for i in range(length):
            at = position[path[i]]
            if at == 0:
                break
            distance = distance + 1 if at == before - 1 else live - _above(tree, node_at, at)
            before = at
            counts[0, distance] += 1
            if i < (tokens - 1) // block_size:
                counts[1, distance] += block_size
                attended = block_size * (i * block_size + (block_size - 1) / 2)
                weights[1, distance] += linear * block_size + attention * attended
            if i < tokens // block_size:
                counts[2, distance] += block_size
            counts[3, distance] += min((i + 1) * block_size, tokens) - min(i * block_size, tokens)
            weights[0, distance] += 1.0 / length
        group: Any = 0
        moved = 0  # blocks that leave `group`, not yet taken from the tree
        for i in range(length - 1, -1, -1):
            node = path[i]
            at = position[node]
            if at > 0:
                if at // GROUP != group and moved > 0:
                    _add(tree, group + 1, np.int32(-moved))
                    moved = 0
                group = at // GROUP
                moved += 1
                node_at[at] = -1
            else:
                live += 1
            node_at[top + length - 1 - i] = node
            position[node] = top + length - 1 - i
        if moved > 0:
            _add(tree, group + 1, np.int32(-moved))
        end = top + length
        while top < end:
            group = top // GROUP + 1
            _add(tree, group, np.int32(min(group * GROUP, end) - top))
            top = min(group * GROUP, end)
