"""The block trie to be drawn: chains of blocks that the same requests use; small ones are merged."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvtool.page import Branch

MOST = 800
"""Branches shown, the merged ones not counted."""
LEAST = 0.0005
"""Share of all tokens x requests below which a branch is merged with its small siblings."""


@dataclass(frozen=True)
class Chains:
    """c chains of a tree, parents first. head, last: first and last node of each. blocks: its length.
    weight: tokens x requests of it and of all below it, int64 [c]."""

    head: NDArray[np.int64]
    last: NDArray[np.int64]
    parent: NDArray[np.int64]
    blocks: NDArray[np.int64]
    weight: NDArray[np.int64]


def chains(
    parent: NDArray[np.int32], blocks: NDArray[np.int32], requests: NDArray[np.int64], block_size: int
) -> Chains:
    """Cut a tree wherever some request leaves or ends. parent: smaller than the node's own number, -1: none;
    blocks: of each node."""
    owner = parent.astype(np.int64)
    starts = (owner < 0) | (requests[owner] != requests)
    top = np.where(starts, np.arange(len(owner)), owner)  # halves the way to a chain's head at every turn
    while True:
        higher = top[top]
        if (higher == top).all():
            break
        top = higher
    head, chain = np.unique(top, return_inverse=True)
    length = np.zeros(len(head), np.int64)
    np.add.at(length, chain, blocks)
    last = np.zeros(len(head), np.int64)
    np.maximum.at(last, chain, np.arange(len(owner)))
    chain_parent = np.where(owner[head] < 0, -1, chain[owner[head]])
    weight = requests[head] * length * block_size
    for child, own in zip(range(len(head) - 1, -1, -1), chain_parent[::-1].tolist(), strict=True):
        if own >= 0:
            weight[own] += weight[child]
    return Chains(head, last, chain_parent, length, weight)


def branches(
    parent: NDArray[np.int32],
    above: NDArray[np.int32],
    blocks: NDArray[np.int32],
    requests: NDArray[np.int64],
    sessions: NDArray[np.int64],
    block_size: int,
    text: Callable[[int, int], str],
) -> list[Branch]:
    """The heaviest chains in full, parents first, and beside them one row for all their small siblings.

    Of each node of a tree, above: blocks above it, blocks: its own, requests, sessions: its users. text: what
    stands in the chain from one node down to another.
    """
    found = chains(parent, blocks, requests, block_size)
    if not len(found.head):
        return []
    total = int(found.weight[found.parent < 0].sum())
    heaviest = np.argsort(-found.weight, kind="stable")[:MOST]
    shown = np.zeros(len(found.head), np.bool_)
    shown[heaviest[found.weight[heaviest] >= LEAST * total]] = True  # closed: no child outweighs its parent
    row = np.cumsum(shown) - 1
    rows: list[Branch] = []
    for chain in np.flatnonzero(shown).tolist():
        head, last, owner = int(found.head[chain]), int(found.last[chain]), int(found.parent[chain])
        users = int(requests[head])
        rows.append(
            Branch(
                parent=-1 if owner < 0 else int(row[owner]),
                start=int(above[head]) * block_size,
                tokens=int(found.blocks[chain]) * block_size,
                requests=users,
                sessions=int(sessions[head]),
                weight=int(found.weight[chain]),
                reused=round(1 - 1 / users, 6) if users else 0.0,
                merged=1,
                text=text(head, last),
            )
        )
    return rows + _merged(found, shown, row, above, requests, block_size)


def _merged(
    found: Chains,
    shown: NDArray[np.bool_],
    row: NDArray[np.int64],
    above: NDArray[np.int32],
    requests: NDArray[np.int64],
    block_size: int,
) -> list[Branch]:
    """One row for the small branches below each shown one, and one for those at the top."""
    owner_of = found.parent
    small = np.flatnonzero(~shown & ((owner_of < 0) | shown[owner_of]))
    small = small[np.argsort(owner_of[small], kind="stable")]
    owners, first, count = np.unique(owner_of[small], return_index=True, return_counts=True)
    once = found.blocks * block_size  # tokens that each chain computes once, with all below it
    for chain, own in zip(range(len(once) - 1, -1, -1), owner_of[::-1].tolist(), strict=True):
        if own >= 0:
            once[own] += once[chain]
    rows = []
    for owner, start, size in zip(owners.tolist(), first.tolist(), count.tolist(), strict=True):
        part = small[start : start + size]
        weight, computed = int(found.weight[part].sum()), int(once[part].sum())
        rows.append(
            Branch(
                parent=-1 if owner < 0 else int(row[owner]),
                start=int(above[found.head[part[0]]]) * block_size,
                tokens=int(found.blocks[part].max()) * block_size,
                requests=int(requests[found.head[part]].sum()),
                sessions=0,
                weight=weight,
                reused=round(1 - computed / weight, 6) if weight else 0.0,
                merged=size,
                text="",
            )
        )
    return rows
