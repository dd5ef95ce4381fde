"""A log's trie as a plan sees it: spaces of one tenant are one, and every node knows who would use it."""

import numpy as np
from numpy.typing import NDArray

from kvtool.analysis.workload import Workload


class PlanTrie:
    """The workload's trie with spaces of one tenant merged. Node n's children have greater ids.

    `chance` [n of the workload]: how likely each of its blocks is to be used again, None where nothing
    is known of that. hits: requests that would use a node; expected: the same of a span of traffic as
    long as the log, by hits and chance, never less than what the node's children expect.
    """

    def __init__(self, workload: Workload, chance: NDArray[np.float64] | None = None) -> None:
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
        used = self.nodes[self.usable]
        self.hits = np.bincount(used, minlength=len(keep)).astype(np.int64)
        self.expected = self.hits.astype(np.float64)
        if chance is not None:
            weights = chance[workload.nodes[self.usable]]
            self.expected = self._lifted(np.bincount(used, weights, len(keep)).astype(np.float64))

    def _lifted(self, expected: NDArray[np.float64]) -> NDArray[np.float64]:
        """Who uses a child uses its parent."""
        for depth in range(int(self.depth.max(initial=0)), 0, -1):
            nodes = np.flatnonzero(self.depth == depth)
            below = np.bincount(self.parent[nodes], expected[nodes], minlength=len(expected))
            np.maximum(expected, below, out=expected)
        return expected

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
