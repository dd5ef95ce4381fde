"""The prewarm plan: which blocks of a log are worth storing under a budget of bytes.

A block's value is what it saves per stored byte: expected hits x tokens to rebuild / bytes. A block
is of no use without its parent, so the choice grows from the roots (prefix-closed); hits never rise
on the way down, which makes taking the densest next block first the right order.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvtool.analysis.workload import Workload
from kvtool.errors import KvtoolError


@dataclass(frozen=True)
class PlanConfig:
    """budget: bytes of shards at most, None for no limit. min_requests: fewer users, not stored."""

    budget: int | None = None
    min_requests: int = 2


@dataclass(frozen=True)
class Plan:
    """n blocks in storage order: depth first, so that chains stand together, see `_storage_order`.

    parent: row in this plan, -1 for a first block. tokens: uint32 [n, block_size]. hits: requests of the
    log that would use the block. tenant: index into `tenants`. bytes: stored size of each block.
    """

    block_size: int
    tenants: Sequence[str]
    tenant: NDArray[np.int32]
    parent: NDArray[np.int64]
    depth: NDArray[np.int32]
    tokens: NDArray[np.uint32]
    hits: NDArray[np.int64]
    bytes: NDArray[np.int64]
    forecast: "Forecast"

    def __len__(self) -> int:
        return len(self.parent)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the plan would have done for the very log it was made from.

    hit_rate: prompt tokens served by the stored blocks / prompt tokens, over the whole log.
    hit_rate_cached: the same with an unbounded cache that also keeps what it computes.
    hit_rate_cold: that cache without the stored blocks.
    tokens: distinct tokens of the planned prefixes, each of which is computed once.
    tokens_unshared: what the same prefixes cost when every request computes its own.
    split_tokens: copies that are stored because prompts part inside a block.
    too_deep: blocks left out because they lie beyond the model's positions.
    over_budget, under_used: blocks left out by --budget and by --min-requests.
    """

    prompt_tokens: int
    hit_rate: float
    hit_rate_cached: float
    hit_rate_cold: float
    tokens: int
    tokens_unshared: int
    split_tokens: int
    too_deep: int
    over_budget: int
    under_used: int


def make_plan(
    workload: Workload, config: PlanConfig, block_bytes: Callable[[int], int], max_positions: int
) -> Plan:
    """Choose blocks of `workload`. `block_bytes` is the stored size of a block at a depth.

    Spaces that differ only in the model named in the log are one: the blocks are computed by our model
    whatever the log's was. Tenants stay apart. Raises KvtoolError for a log without tokens.
    """
    if workload.ready_made:
        raise KvtoolError(
            "the log holds block ids, not tokens: there is nothing to compute",
            "prewarm from a log of prompts",
        )
    trie = _Trie(workload)
    deepest = max_positions // workload.block_size
    usable = trie.depth < deepest
    wanted = usable & (trie.hits >= config.min_requests)
    sizes = np.array([block_bytes(depth) for depth in range(int(trie.depth.max(initial=0)) + 1)], np.int64)
    chosen = _grow(trie, wanted, sizes[trie.depth] if len(trie.depth) else sizes[:0], config.budget)
    order = _storage_order(trie, chosen)
    row = np.full(len(trie.parent) + 1, -1, np.int64)
    row[order] = np.arange(len(order))
    tokens = trie.tokens[order]
    split = _split_tokens(row[trie.parent[order]], trie.tenant[order], tokens)
    return Plan(
        block_size=workload.block_size,
        tenants=trie.tenants,
        tenant=trie.tenant[order],
        parent=row[trie.parent[order]],
        depth=trie.depth[order],
        tokens=tokens,
        hits=trie.hits[order],
        bytes=sizes[trie.depth[order]] if len(order) else sizes[:0],
        forecast=Forecast(
            prompt_tokens=int(workload.prompt_tokens.sum()),
            hit_rate=trie.hit_rate(chosen),
            hit_rate_cached=trie.hit_rate(chosen, grows=True),
            hit_rate_cold=trie.hit_rate(np.zeros_like(chosen), grows=True),
            tokens=len(order) * workload.block_size - split,
            tokens_unshared=int(trie.hits[order].sum()) * workload.block_size,
            split_tokens=split,
            too_deep=int((~usable & (trie.hits >= config.min_requests)).sum()),
            over_budget=int((wanted & ~chosen).sum()),
            under_used=int((usable & (trie.hits < config.min_requests)).sum()),
        ),
    )


class _Trie:
    """The workload's trie with spaces of one tenant merged. Node n's children have greater ids."""

    def __init__(self, workload: Workload) -> None:
        self.block_size = workload.block_size
        self.prompt_tokens = workload.prompt_tokens
        names = [tenant or "" for _, tenant in workload.spaces]
        self.tenants = sorted(set(names))
        tenant_of_space = np.array([self.tenants.index(name) for name in names], np.int32)
        node_tenant = tenant_of_space[workload.node_space] if names else np.zeros(0, np.int32)
        merged, keep = self._merge(workload, node_tenant)
        self.parent = np.where(workload.parent[keep] < 0, -1, merged[workload.parent[keep]])
        self.depth = workload.depth[keep]
        self.tenant = node_tenant[keep]
        self.tokens = workload.words[keep]
        self.nodes = merged[workload.nodes]
        self.request = np.repeat(np.arange(workload.requests), workload.lengths)
        place = np.arange(len(self.nodes)) - np.repeat(workload.offsets[:-1], workload.lengths)
        reusable = np.maximum(workload.prompt_tokens - 1, 0) // self.block_size
        self.usable = place < reusable[self.request]
        self.hits = np.bincount(self.nodes[self.usable], minlength=len(keep)).astype(np.int64)

    @staticmethod
    def _merge(
        workload: Workload, node_tenant: NDArray[np.int32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(new id of every node, old id of every new node): equal prefixes of one tenant become one node."""
        count = workload.distinct_blocks
        if len({tenant for _, tenant in workload.spaces}) == len(workload.spaces):
            return np.arange(count), np.arange(count)
        known: dict[tuple[int, int, bytes], int] = {}
        merged = np.empty(count, np.int64)
        keep: list[int] = []
        for node in range(count):
            parent = int(workload.parent[node])
            key = (
                -1 if parent < 0 else int(merged[parent]),
                int(node_tenant[node]),
                workload.words[node].tobytes(),
            )
            merged[node] = known.setdefault(key, len(keep))
            if merged[node] == len(keep):
                keep.append(node)
        return merged, np.array(keep, np.int64)

    def hit_rate(self, stored: NDArray[np.bool_], grows: bool = False) -> float:
        """Tokens served by `stored` blocks / prompt tokens; `grows`: and by what earlier requests left."""
        total = int(self.prompt_tokens.sum())
        served = stored[self.nodes]
        if grows:
            first = np.full(len(stored), len(self.prompt_tokens), np.int64)
            np.minimum.at(first, self.nodes, self.request)
            served = served | (first[self.nodes] < self.request)
        # Both sets are prefix-closed, so the served blocks of a prompt are its leading ones.
        return int((served & self.usable).sum()) * self.block_size / total if total else 0.0


def _grow(
    trie: _Trie, wanted: NDArray[np.bool_], sizes: NDArray[np.int64], budget: int | None
) -> NDArray[np.bool_]:
    """The prefix-closed choice: densest first, then deeper (finish a chain), then by id."""
    chosen = np.zeros(len(wanted), np.bool_)
    if budget is None:
        return wanted.copy()  # hits fall along a chain, so what is wanted is prefix-closed
    children = _children(trie.parent, wanted)

    def entry(node: int) -> tuple[float, int, int]:
        return (-int(trie.hits[node]) * trie.block_size / int(sizes[node]), -int(trie.depth[node]), node)

    heap = [entry(node) for node in children[-1]]
    heapify(heap)
    left = budget
    while heap:
        _, _, node = heappop(heap)
        if sizes[node] > left:
            continue
        left -= int(sizes[node])
        chosen[node] = True
        for child in children[node]:
            heappush(heap, entry(child))
    return chosen


def _children(parent: NDArray[np.int64], kept: NDArray[np.bool_]) -> defaultdict[int, list[int]]:
    """Children of every kept node that are kept too, ascending; at -1 the first blocks."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for node in np.flatnonzero(kept).tolist():
        children[int(parent[node])].append(node)
    return children


def _storage_order(trie: _Trie, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Chosen nodes depth first. Siblings follow the trie of their tokens, the most used branch first.

    So a hot chain is one run, and a block finds what it shares with any earlier sibling in the sibling
    just before it.
    """
    children = _children(trie.parent, chosen)
    order: list[int] = []
    stack = [-1]
    while stack:
        node = stack.pop()
        if node >= 0:
            order.append(node)
        stack.extend(reversed(_ranked(trie, children[node])))
    return np.array(order, np.int64)


def _ranked(trie: _Trie, siblings: list[int]) -> list[int]:
    """Siblings grouped by tenant, then by each token in turn; groups of more hits first, then lower ids."""
    stack = [(siblings, -1)]
    order: list[int] = []
    while stack:
        nodes, place = stack.pop()
        if len(nodes) <= 1:
            order.extend(nodes)
            continue
        groups: dict[int, list[int]] = {}
        for node in nodes:
            groups.setdefault(int(trie.tenant[node] if place < 0 else trie.tokens[node, place]), []).append(
                node
            )
        ranked = sorted(groups.values(), key=lambda group: (-int(trie.hits[group].sum()), group[0]))
        stack.extend((group, place + 1) for group in reversed(ranked))
    return order


def _split_tokens(parent: NDArray[np.int64], tenant: NDArray[np.int32], tokens: NDArray[np.uint32]) -> int:
    """Leading tokens that sibling blocks have in common, each counted once less than it is stored."""
    families: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for above, owner, block in zip(parent.tolist(), tenant.tolist(), tokens, strict=True):
        families.setdefault((above, owner), []).append(tuple(block.tolist()))
    wasted = 0
    for blocks in families.values():
        blocks.sort()
        for left, right in pairwise(blocks):
            wasted += next(at for at, (a, b) in enumerate(zip(left, right, strict=True)) if a != b)
    return wasted
