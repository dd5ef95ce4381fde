"""Which nodes of a forest to take under a budget, when a node is of no use without its parent.

A parent of little value may lead to a child of much, so what counts is not a node's own value per byte
but that of the best group it opens. Taking the densest node first and joining it to its parent where
that is not taken yet gives those groups in the order that is best for every budget that ends with one
of them (Horn, 1972, for trees of precedence; Sidney's decomposition). Where the next group does not fit,
two ways on are tried: whole groups that do fit, and single nodes.
"""

from collections import defaultdict
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray


def choose(
    parent: NDArray[np.int64],
    depth: NDArray[np.int32],
    value: NDArray[np.float64],
    size: NDArray[np.int64],
    able: NDArray[np.bool_],
    budget: int,
    owner: NDArray[np.int32],
    quotas: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """A prefix-closed choice among the `able` of total size `budget` at most.

    parent: a smaller number, or -1; parents of able nodes are able. owner: index into `quotas`, the
    most size that an owner's nodes may take, infinity for no limit. Ties go to the deeper node, which
    finishes a chain, then to the smaller number. Nodes that only cost (value <= 0) are taken only on
    the way to those that pay.
    """
    found = []
    for skip in (True, False):
        choice = _Choice(parent, depth, value, size, able, budget, owner, quotas)
        choice.take_groups(skip)
        choice.fill()
        found.append(choice.taken)
    first, second = found
    return second if value[second].sum() > value[first].sum() else first


class _Choice:
    """A group is named by its topmost node; `link` chains its members, parents before children."""

    def __init__(
        self,
        parent: NDArray[np.int64],
        depth: NDArray[np.int32],
        value: NDArray[np.float64],
        size: NDArray[np.int64],
        able: NDArray[np.bool_],
        budget: int,
        owner: NDArray[np.int32],
        quotas: NDArray[np.float64],
    ) -> None:
        self.parent, self.depth, self.owner = parent.tolist(), depth.tolist(), owner.tolist()
        self.value, self.size = value.tolist(), size.tolist()
        self.able = np.flatnonzero(able).tolist()
        self.left, self.quotas = budget, quotas.tolist()
        self.taken = np.zeros(len(parent), np.bool_)

    def take_groups(self, skip: bool) -> None:
        """Whole groups, densest first. One that does not fit ends it, or with `skip` is passed over."""
        worth, weight = list(self.value), list(self.size)
        top = list(range(len(worth)))
        link: list[int] = [-1] * len(worth)
        tail = list(range(len(worth)))
        left_out: set[int] = set()

        def entry(node: int) -> tuple[float, int, int]:
            return (-worth[node] / weight[node], -self.depth[node], node)

        def top_of(node: int) -> int:
            while top[node] != node:
                top[node] = top[top[node]]
                node = top[node]
            return node

        heap = [entry(node) for node in self.able]
        heapify(heap)
        while heap:
            found = heappop(heap)
            node = found[2]
            if top[node] != node or self.taken[node] or found != entry(node):
                continue  # joined another, or grew since
            if found[0] >= 0:
                return
            above = self.parent[node]
            if above >= 0 and not self.taken[above]:
                head = top_of(above)
                if head in left_out:
                    left_out.add(node)
                    continue
                top[node] = head
                worth[head] += worth[node]
                weight[head] += weight[node]
                link[tail[head]], tail[head] = node, tail[node]
                heappush(heap, entry(head))
            elif self._fits(node, weight[node]):
                member = node
                while member >= 0:
                    self._take(member)
                    member = link[member]
            elif skip:
                left_out.add(node)
            else:
                return

    def fill(self) -> None:
        """What is left of the budget: single nodes below those taken, densest first, as they fit."""
        children: defaultdict[int, list[int]] = defaultdict(list)
        for node in self.able:
            if not self.taken[node] and self.value[node] > 0:
                children[self.parent[node]].append(node)

        def entry(node: int) -> tuple[float, int, int]:
            return (-self.value[node] / self.size[node], -self.depth[node], node)

        heap = [
            entry(node)
            for above, below in children.items()
            if above < 0 or self.taken[above]
            for node in below
        ]
        heapify(heap)
        while heap:
            node = heappop(heap)[2]
            if self._fits(node, self.size[node]):
                self._take(node)
                for child in children[node]:
                    heappush(heap, entry(child))

    def _fits(self, node: int, size: int) -> bool:
        return size <= self.left and size <= self.quotas[self.owner[node]]

    def _take(self, node: int) -> None:
        self.taken[node] = True
        self.left -= self.size[node]
        self.quotas[self.owner[node]] -= self.size[node]
