"""Belady's optimum under the prefix constraint: what no policy can beat, for blocks of one size.

After each request the cache keeps, of what it held and what was asked for, the blocks with the nearest
next use; ties keep the shallower. A block is never used again before its parent, so the kept set is
closed under prefixes, and plain MIN with bypass is exact.
"""

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvtool.analysis.workload import Workload
from kvtool.compiling import njit

NEVER = np.iinfo(np.int64).max


def belady(workload: Workload, capacity: int) -> NDArray[np.int64]:
    """Matched blocks of each request, int64 [r], with room for `capacity` blocks."""
    matched = np.empty(workload.requests, np.int64)
    _min(workload.nodes, workload.offsets, workload.depth, capacity, matched)
    return matched


@njit(types.boolean(types.int64[::1], types.int32[::1], types.int32, types.int32), cache=True)
def _later(rank: Any, depth: Any, a: Any, b: Any) -> Any:
    """Whether `a` leaves before `b`: used later, or as late and deeper."""
    return rank[a] > rank[b] or (rank[a] == rank[b] and depth[a] > depth[b])


@njit(
    types.void(
        types.int32[::1], types.int32[::1], types.int64[::1], types.int32[::1], types.int64, types.int32
    ),
    cache=True,
)
def _rise(heap: Any, place: Any, rank: Any, depth: Any, at: Any, node: Any) -> None:
    while at > 0:
        above = (at - 1) >> 1
        if not _later(rank, depth, node, heap[above]):
            break
        heap[at] = heap[above]
        place[heap[at]] = at
        at = above
    heap[at] = node
    place[node] = at


@njit(
    types.void(
        types.int32[::1],
        types.int32[::1],
        types.int64[::1],
        types.int32[::1],
        types.int64,
        types.int64,
        types.int32,
    ),
    cache=True,
)
def _sink(heap: Any, place: Any, rank: Any, depth: Any, size: Any, at: Any, node: Any) -> None:
    while 2 * at + 1 < size:
        below = 2 * at + 1
        if below + 1 < size and _later(rank, depth, heap[below + 1], heap[below]):
            below += 1
        if not _later(rank, depth, heap[below], node):
            break
        heap[at] = heap[below]
        place[heap[at]] = at
        at = below
    heap[at] = node
    place[node] = at


@njit(
    types.void(types.int32[::1], types.int64[::1], types.int32[::1], types.int64, types.int64[::1]),
    cache=True,
)
def _min(nodes: Any, offsets: Any, depth: Any, capacity: Any, matched: Any) -> None:
    """The latest use is at the heap's top. A block enters or moves when it is asked for: only then does
    its next use change."""
    next_use = np.empty(nodes.size, np.int64)
    rank = np.full(depth.size, NEVER, np.int64)
    for request in range(matched.size - 1, -1, -1):
        for at in range(offsets[request], offsets[request + 1]):
            next_use[at] = rank[nodes[at]]
            rank[nodes[at]] = request
    place = np.full(depth.size, -1, np.int32)
    heap = np.empty(depth.size, np.int32)
    size = 0
    for request in range(matched.size):
        start, stop = offsets[request], offsets[request + 1]
        hit = 0
        while start + hit < stop and place[nodes[start + hit]] >= 0:
            hit += 1
        matched[request] = hit
        for at in range(start, stop):
            node = nodes[at]
            rank[node] = next_use[at]
            if place[node] >= 0:
                _rise(heap, place, rank, depth, np.int64(place[node]), node)
            elif next_use[at] != NEVER:
                size += 1
                _rise(heap, place, rank, depth, size - 1, node)
        while size > 0 and (size > capacity or rank[heap[0]] == NEVER):
            place[heap[0]] = -1
            size -= 1
            if size > 0:
                _sink(heap, place, rank, depth, size, np.int64(0), heap[size])
