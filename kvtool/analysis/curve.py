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


class LruCurve:
    """Hit rates of LRU at every capacity."""

    def __init__(self, workload: Workload, prefill: Prefill = TYPICAL) -> None:
        counts = np.zeros((4, workload.distinct_blocks + 1), np.int64)
        weights = np.zeros((2, workload.distinct_blocks + 1))
        _stack_distances(
            workload.nodes,
            workload.offsets,
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
        self._blocks = len(workload.nodes)
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


@njit(types.int64(types.int32[::1], types.int64), cache=True)
def _sum_to(tree: Any, at: Any) -> Any:
    total = 0
    while at > 0:
        total += tree[at]
        at -= at & -at
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
        tree[at] += 1
    for at in range(1, tree.size):
        above = at + (at & -at)
        if above < tree.size:
            tree[above] += tree[at]
    return live


@njit(
    types.void(
        types.int32[::1],
        types.int64[::1],
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
    nodes: Any,
    offsets: Any,
    prompt_tokens: Any,
    block_size: Any,
    linear: Any,
    attention: Any,
    counts: Any,
    weights: Any,
) -> None:
    """Adds each hit block to column `distance` of counts (blocks, capped, full and all tokens) and of
    weights (share of its request, FLOPs that it saves).

    A Fenwick tree counts the live positions of the stack; positions grow towards its top.
    """
    distinct = counts.shape[1] - 1
    longest = 0
    for request in range(prompt_tokens.size):
        longest = max(longest, offsets[request + 1] - offsets[request])
    room = 2 * distinct + longest + 2
    tree = np.zeros(room, np.int32)
    node_at = np.full(room, -1, np.int32)
    position = np.zeros(distinct, np.int64)
    live = 0
    top = 1
    for request in range(prompt_tokens.size):
        start, stop = offsets[request], offsets[request + 1]
        length, tokens = stop - start, prompt_tokens[request]
        if top + length > room:
            top = _compact(tree, node_at, position)
        for i in range(length):
            at = position[nodes[start + i]]
            if at == 0:
                break
            distance = live - _sum_to(tree, at - 1)
            counts[0, distance] += 1
            if i < (tokens - 1) // block_size:
                counts[1, distance] += block_size
                attended = block_size * (i * block_size + (block_size - 1) / 2)
                weights[1, distance] += linear * block_size + attention * attended
            if i < tokens // block_size:
                counts[2, distance] += block_size
            counts[3, distance] += min((i + 1) * block_size, tokens) - min(i * block_size, tokens)
            weights[0, distance] += 1.0 / length
        for i in range(length - 1, -1, -1):
            node = nodes[start + i]
            at = position[node]
            if at > 0:
                _add(tree, at, np.int32(-1))
                node_at[at] = -1
            else:
                live += 1
            _add(tree, top, np.int32(1))
            node_at[top] = node
            position[node] = top
            top += 1
