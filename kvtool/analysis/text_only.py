"""Blocks of a log that are not text, or follow what is not: a server of text is never asked for them.

In a log's prompts a placeholder stands for a picture, a sound or a file (`kvtool.media`). `kvtool serve`
refuses such requests, and a server that takes them sees other tokens there.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kvtool.analysis.plan_trie import PlanTrie
from kvtool.media import PLACEHOLDER

Decode = Callable[[Sequence[int]], str]
"""Token ids -> their text."""

LONGEST = 100
"""Tokens that the beginning of a placeholder takes at most, one a byte."""


def beyond_text(trie: PlanTrie, used: NDArray[np.bool_], decode: Decode) -> NDArray[np.bool_]:
    """Used nodes that hold any of a placeholder, and nodes below one that does: bool [n].

    used: the nodes that matter, prefix-closed. A node is read with what stands before it and one way on, for
    a placeholder's beginning may take several blocks. One that a prompt's last full block cuts off within its
    beginning is not seen: a block too many, no more.
    """
    around = -(-LONGEST // trie.block_size)
    child = np.full(len(used) + 1, -1, np.int64)
    child[trie.parent[::-1]] = np.arange(len(used))[::-1]
    beyond = np.zeros(len(used) + 1, np.bool_)  # [-1]: above a first block
    for node in np.flatnonzero(used).tolist():
        if beyond[trie.parent[node]]:
            beyond[node] = True
            continue
        above, below = _along(trie.parent, node, around)[::-1], _along(child, node, around)
        ids = np.ravel(trie.tokens[[*above, node, *below]]).tolist()
        placeholder = PLACEHOLDER.search(decode(ids))
        if placeholder is not None:
            begin = next(at for at in range(len(ids)) if len(decode(ids[: at + 1])) > placeholder.start())
            beyond[[*above, node][begin // trie.block_size :]] = True
    for depth in range(1, int(trie.depth.max(initial=0)) + 1):
        nodes = np.flatnonzero(trie.depth == depth)
        beyond[nodes] |= beyond[trie.parent[nodes]]
    return beyond[:-1]


def _along(way: NDArray[np.int64] | NDArray[np.int32], node: int, count: int) -> list[int]:
    """At most `count` nodes from `node` on, itself left out."""
    found: list[int] = []
    while len(found) < count and (node := int(way[node])) >= 0:
        found.append(node)
    return found
