"""A prewarmed start: blocks that are in the cache before the first request.

They come from shards or from an earlier log. Blocks that the simulated log never asks for are there too
and take their slots until the policy lets them go, as they would in a server.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvtool.analysis.workload import Workload
from kvtool.cache.core import NODES, STATE, State, commit, compiled, new_state, take_slot, unpin
from kvtool.errors import KvtoolError


@dataclass(frozen=True)
class Stored:
    """n blocks that were kept, parents before children.

    words: uint32 [n, w], as `Workload` has them; parent: row or -1, int64 [n]; tenant: of each row, "" for
    none; hits: expected uses, float64 [n], which never rise on the way down.
    """

    block_size: int
    words: NDArray[np.uint32]
    parent: NDArray[np.int64]
    tenant: Sequence[str]
    hits: NDArray[np.float64]


@dataclass(frozen=True)
class Resident:
    """Stored blocks as nodes of a workload; those that it does not know are numbered after its own.

    parent, depth: of all nodes, int32 [n + strangers]. nodes: the order in which they are given slots,
    int32, the most useful first, parents before children. known: how many of the stored blocks occur.
    """

    parent: NDArray[np.int32]
    depth: NDArray[np.int32]
    nodes: NDArray[np.int32]
    known: int

    def state(self, capacity: int, parameters: NDArray[np.float64]) -> State:
        """A cache of `capacity` blocks with these in it, as many as fit."""
        state = new_state(len(self.parent), capacity, parameters)
        state = state._replace(parent=self.parent.copy(), depth=self.depth.copy())
        _place(state, self.nodes[:capacity])
        return state


def stored_of(workload: Workload, min_requests: int = 2) -> Stored:
    """The blocks of a log that at least `min_requests` of its requests used, as prewarm would keep them."""
    hits = np.bincount(workload.nodes, minlength=workload.distinct_blocks)
    keep = np.flatnonzero(hits >= min_requests)
    row = np.full(workload.distinct_blocks + 1, -1, np.int64)
    row[keep] = np.arange(len(keep))
    tenants = [workload.spaces[space][1] or "" for space in workload.node_space[keep].tolist()]
    return Stored(
        workload.block_size,
        workload.words[keep],
        row[workload.parent[keep]],
        tenants,
        hits[keep].astype(float),
    )


def resident_in(workload: Workload, stored: Stored) -> Resident:
    """Find stored blocks in a log by their tokens, under every model that the log names for their tenant.

    KvtoolError if the blocks have another size.
    """
    if stored.block_size != workload.block_size:
        raise KvtoolError(
            f"--resident: blocks of {stored.block_size} tokens, the log has blocks of {workload.block_size}",
            f"simulate with --block-size {stored.block_size}",
        )
    if stored.words.shape[1:] != workload.words.shape[1:]:
        raise KvtoolError("--resident: blocks of tokens and a trace of block ids have nothing in common")
    wanted = {words.tobytes() for words in stored.words}
    parents, spaces = workload.parent.tolist(), workload.node_space.tolist()
    place = {
        (spaces[node], parents[node], data): node
        for node, words in enumerate(workload.words)
        if (data := words.tobytes()) in wanted
    }
    spaces_of: dict[str, list[int]] = {}
    for space, (_, tenant) in enumerate(workload.spaces):
        spaces_of.setdefault(tenant or "", []).append(space)
    found: list[dict[int, int]] = []  # of each row: its node by space, -1 stands for a stranger's
    parent, depth = list(parents), workload.depth.tolist()
    for above, words, tenant in zip(stored.parent.tolist(), stored.words, stored.tenant, strict=True):
        at: dict[int, int] = {}
        for space in spaces_of.get(tenant, []):
            higher = -1 if above < 0 else found[above].get(space)
            node = None if higher is None else place.get((space, higher, words.tobytes()))
            if node is not None:
                at[space] = node
        if not at:
            higher = -1 if above < 0 else next(iter(found[above].values()))
            at[-1] = len(parent)
            parent.append(higher)
            depth.append(0 if higher < 0 else depth[higher] + 1)
        found.append(at)
    deep = np.array([depth[next(iter(at.values()))] for at in found], np.int64)
    order = np.lexsort((np.arange(len(found)), deep, -stored.hits))
    nodes = [node for row in order.tolist() for node in found[row].values()]
    known = sum(-1 not in at for at in found)
    return Resident(np.array(parent, np.int32), np.array(depth, np.int32), np.array(nodes, np.int32), known)


@compiled(types.void(STATE, NODES))
def _place(s: Any, nodes: Any) -> None:
    """Give each of `nodes` a slot, held by nobody; nobody has used them yet, as in `Pool.place`."""
    for i in range(nodes.size):
        slot, _ = take_slot(s)
        commit(s, nodes[i], slot)
        unpin(s, nodes[i : i + 1])
