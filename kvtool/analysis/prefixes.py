"""Per-block use counts, and the shared prefixes that save the most tokens."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvtool.analysis.workload import PromptTree
from kvtool.compiling import njit


@dataclass(frozen=True)
class Usage:
    """How each node was used: requests and distinct sessions, index of the first and last request, [n]."""

    requests: NDArray[np.int64]
    sessions: NDArray[np.int64]
    first: NDArray[np.int32]
    last: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class HotPrefix:
    """A shared prefix that ends with `node`. tokens: its length; saved: what sharing it saves beyond the
    prefixes listed before it."""

    node: int
    tokens: int
    requests: int
    sessions: int
    saved: int


def usage(workload: PromptTree) -> Usage:
    """Counts over all of `workload`; requests without a session count in none."""
    nodes = len(workload.parent)
    result = Usage(
        np.zeros(nodes, np.int64),
        np.zeros(nodes, np.int64),
        np.full(nodes, workload.requests, np.int32),
        np.full(nodes, -1, np.int32),
    )
    by_session = np.argsort(workload.session, kind="stable")
    with_session = by_session[workload.session[by_session] >= 0]
    _count(
        workload.leaf,
        workload.parent,
        workload.session,
        with_session,
        result.requests,
        result.sessions,
        result.first,
        result.last,
    )
    return result


def hot_prefixes(workload: PromptTree, counts: Usage, most: int = 10) -> list[HotPrefix]:
    """Up to `most` maximal shared prefixes, each chosen for the tokens it saves beyond those before it.

    A prefix is maximal when no single continuation has all of its requests. Its worth is (requests - 1)
    x tokens at first; once a longer one is listed only the remaining requests count, once a shorter one
    is, only the tokens below it. So a chain's ancestors are not listed again.
    """
    partial = np.zeros(len(workload.parent), np.bool_)
    partial[workload.leaf[workload.partial]] = True
    maximal = _maximal(workload.parent, counts.requests, partial)
    chosen = np.zeros(len(workload.parent), np.bool_)
    covered = np.zeros(len(workload.parent), np.int64)
    prefixes: list[HotPrefix] = []
    for _ in range(most):
        node, worth = _best(workload.parent, workload.depth, counts.requests, maximal, chosen, covered)
        if worth <= 0:
            break
        chosen[node] = True
        prefixes.append(
            HotPrefix(
                node=int(node),
                tokens=int(workload.depth[node] + 1) * workload.block_size,
                requests=int(counts.requests[node]),
                sessions=int(counts.sessions[node]),
                saved=int(worth) * workload.block_size,
            )
        )
        gained = counts.requests[node] - covered[node]
        above = workload.parent[node]
        while above >= 0:
            covered[above] += gained
            if chosen[above]:
                break
            above = workload.parent[above]
    return prefixes


@njit(
    types.void(
        types.int32[::1],
        types.int32[::1],
        types.int32[::1],
        types.int64[::1],
        types.int64[::1],
        types.int64[::1],
        types.int32[::1],
        types.int32[::1],
    ),
    cache=True,
)
def _count(
    leaf: Any, parent: Any, session: Any, order: Any, requests: Any, sessions: Any, first: Any, last: Any
) -> None:
    """Leaves first, then every node hands its counts to its parent, whose id is smaller."""
    for request in range(leaf.size):
        node = leaf[request]
        if node >= 0:
            requests[node] += 1
            first[node] = min(first[node], request)
            last[node] = max(last[node], request)
    for node in range(parent.size - 1, -1, -1):
        above = parent[node]
        if above >= 0:
            requests[above] += requests[node]
            first[above] = min(first[above], first[node])
            last[above] = max(last[above], last[node])
    owner = np.full(parent.size, -1, np.int32)
    for at in range(order.size):
        own = session[order[at]]
        node = leaf[order[at]]
        while node >= 0 and owner[node] != own:
            owner[node] = own
            sessions[node] += 1
            node = parent[node]


@njit(types.boolean[::1](types.int32[::1], types.int64[::1], types.boolean[::1]), cache=True)
def _maximal(parent: Any, requests: Any, partial: Any) -> Any:
    maximal = np.empty(parent.size, np.bool_)
    for node in range(parent.size):
        maximal[node] = requests[node] > 1 and not partial[node]
        above = parent[node]
        if above >= 0 and requests[above] == requests[node] and not partial[node]:
            maximal[above] = False
    return maximal


@njit(
    types.UniTuple(types.int64, 2)(
        types.int32[::1],
        types.int32[::1],
        types.int64[::1],
        types.boolean[::1],
        types.boolean[::1],
        types.int64[::1],
    ),
    cache=True,
)
def _best(parent: Any, depth: Any, requests: Any, maximal: Any, chosen: Any, covered: Any) -> Any:
    """(node, worth in blocks) of the candidate that saves most beyond the chosen; ties to the lower id."""
    listed = np.zeros(parent.size, np.int32)
    best, most = -1, 0
    for node in range(parent.size):
        above = parent[node]
        if above >= 0:
            listed[node] = listed[above]
        if chosen[node]:
            listed[node] = depth[node] + 1
        elif maximal[node]:
            worth = (requests[node] - covered[node] - 1) * (depth[node] + 1 - listed[node])
            if worth > most:
                best, most = node, worth
    return best, most
