"""The block trie: prompts go in, each distinct (parent, block) becomes one dense node id.

A block is `width` uint32 words: its token ids, or a trace's ready-made id as two words. The hash only
finds; words are compared exactly, so two blocks are one node if and only if their prefixes are equal.
Node ids are given in order of insertion, so a parent's id is always smaller than its children's.
"""

from typing import Any

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

NO_NODE = -1


class BlockTrie:
    """Grows as prompts are inserted. Roots carry their space (model, tenant) as parent -1 - space."""

    def __init__(self, width: int, nodes: int = 1024) -> None:
        self.width = width
        self.size = 0
        self._link = np.zeros(nodes, np.int32)
        self._depth = np.zeros(nodes, np.int32)
        self._words = np.zeros((nodes, width), np.uint32)
        self._hash = np.zeros(nodes, np.uint64)
        self._table = np.full(4 * nodes, NO_NODE, np.int32)

    def insert(
        self, words: NDArray[np.uint32], offsets: NDArray[np.int64], spaces: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Insert prompts; returns each one's deepest node, int32 [b] (-1: not one full block).

        words: all prompts' words, concatenated; prompt i is words[offsets[i] : offsets[i + 1]], of
        which the full blocks count. spaces [b]: prompts of different spaces never share a node.
        """
        leaves = np.empty(len(spaces), np.int32)
        done = 0
        while True:
            done, self.size = _insert(
                words,
                offsets,
                spaces,
                done,
                self.size,
                self._link,
                self._depth,
                self._words,
                self._hash,
                self._table,
                leaves,
            )
            if done == len(spaces):
                return leaves
            self._reserve(self.size + int(offsets[done + 1] - offsets[done]) // self.width)

    def graft(self, link: NDArray[np.int32], words: NDArray[np.uint32]) -> NDArray[np.int32]:
        """Insert another trie's nodes, parents first; returns the id that each has here, int32 [n].

        link: parent, or -1 - space for a first block, in the other trie's ids but this one's spaces.
        """
        if self.size + len(link) > len(self._link):
            self._reserve(self.size + len(link))
        ids = np.empty(len(link), np.int32)
        self.size = int(
            _graft(
                np.ascontiguousarray(words).ravel(),
                np.ascontiguousarray(link),
                self.size,
                self._link,
                self._depth,
                self._words,
                self._hash,
                self._table,
                ids,
            )
        )
        return ids

    @property
    def link(self) -> NDArray[np.int32]:
        """Parent node, or -1 - space for a first block, int32 [n]."""
        return self._link[: self.size]

    @property
    def depth(self) -> NDArray[np.int32]:
        """0 for a first block, int32 [n]."""
        return self._depth[: self.size]

    @property
    def words(self) -> NDArray[np.uint32]:
        """The blocks themselves, uint32 [n, width]."""
        return self._words[: self.size]

    def _reserve(self, nodes: int) -> None:
        """Room for `nodes` nodes and more in the arrays and, at most half full, in the table."""
        room = max(nodes, len(self._link) * 3 // 2)
        for name in ("_link", "_depth", "_words", "_hash"):
            old = getattr(self, name)
            new = np.zeros((room, *old.shape[1:]), old.dtype)
            new[: self.size] = old[: self.size]
            setattr(self, name, new)
        slots = 1 << (2 * room - 1).bit_length()
        if slots > len(self._table):
            self._table = np.full(slots, NO_NODE, np.int32)
            _rehash(self._hash, self.size, self._table)


@njit(types.uint64(types.uint32[::1], types.int64, types.int64, types.int64), cache=True)
def _block_hash(words: Any, start: Any, width: Any, link: Any) -> Any:
    """Multiply-xorshift over the parent link and the words; only ever a hint."""
    h = np.uint64(link) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x165667B19E3779F9)
    for i in range(width):
        h = (h ^ np.uint64(words[start + i])) * np.uint64(0x9FB21C651E98DF25)
        h ^= h >> np.uint64(29)
    h *= np.uint64(0xD6E8FEB86659FD93)
    return h ^ (h >> np.uint64(32))


@njit(types.void(types.uint64[::1], types.int64, types.int32[::1]), cache=True)
def _rehash(hashes: Any, size: Any, table: Any) -> None:
    mask = np.uint64(table.size - 1)
    for node in range(size):
        at = hashes[node] & mask
        while table[at] >= 0:
            at = (at + np.uint64(1)) & mask
        table[at] = node


@njit(types.boolean(types.uint32[::1], types.int64, types.uint32[:, ::1], types.int64), cache=True)
def _same(words: Any, start: Any, stored: Any, node: Any) -> Any:
    for i in range(stored.shape[1]):  # noqa: SIM110  # numba knows no all()
        if stored[node, i] != words[start + i]:
            return False
    return True


@njit(
    types.int64(
        types.uint32[::1],
        types.int64,
        types.int64,
        types.int64,
        types.int32[::1],
        types.int32[::1],
        types.uint32[:, ::1],
        types.uint64[::1],
        types.int32[::1],
    ),
    cache=True,
)
def _place(
    words: Any,
    start: Any,
    link: Any,
    size: Any,
    links: Any,
    depths: Any,
    stored: Any,
    hashes: Any,
    table: Any,
) -> Any:
    """The node of the block below `link` whose words begin at `start`; node `size` if it had to be added."""
    mask = np.uint64(table.size - 1)
    h = _block_hash(words, start, stored.shape[1], link)
    at = h & mask
    while True:
        node = np.int64(table[at])
        if node < 0:
            table[at] = size
            links[size] = link
            depths[size] = depths[link] + 1 if link >= 0 else 0
            hashes[size] = h
            for i in range(stored.shape[1]):
                stored[size, i] = words[start + i]
            return size
        if hashes[node] == h and links[node] == link and _same(words, start, stored, node):
            return node
        at = (at + np.uint64(1)) & mask


@njit(
    types.int64(
        types.uint32[::1],
        types.int32[::1],
        types.int64,
        types.int32[::1],
        types.int32[::1],
        types.uint32[:, ::1],
        types.uint64[::1],
        types.int32[::1],
        types.int32[::1],
    ),
    cache=True,
)
def _graft(
    words: Any,
    link: Any,
    size: Any,
    links: Any,
    depths: Any,
    stored: Any,
    hashes: Any,
    table: Any,
    ids: Any,
) -> Any:
    for other in range(link.size):
        above = np.int64(link[other] if link[other] < 0 else ids[link[other]])
        start = other * stored.shape[1]
        ids[other] = _place(words, start, above, size, links, depths, stored, hashes, table)
        size += ids[other] == size
    return size


@njit(
    types.UniTuple(types.int64, 2)(
        types.uint32[::1],
        types.int64[::1],
        types.int32[::1],
        types.int64,
        types.int64,
        types.int32[::1],
        types.int32[::1],
        types.uint32[:, ::1],
        types.uint64[::1],
        types.int32[::1],
        types.int32[::1],
    ),
    cache=True,
)
def _insert(
    words: Any,
    offsets: Any,
    spaces: Any,
    first: Any,
    size: Any,
    links: Any,
    depths: Any,
    stored: Any,
    hashes: Any,
    table: Any,
    leaves: Any,
) -> Any:
    """Insert prompts from `first` on, as long as there is room: (the next prompt, nodes by then)."""
    width = stored.shape[1]
    for prompt in range(first, spaces.size):
        start, stop = offsets[prompt], offsets[prompt + 1]
        if size + (stop - start) // width > links.size:
            return prompt, size
        link = np.int64(-1 - spaces[prompt])
        leaf = np.int64(NO_NODE)
        while start + width <= stop:
            # A node's first child mostly came with it and is the next node: no need to look for it.
            node = link + 1
            if link < 0 or node >= size or links[node] != link or not _same(words, start, stored, node):
                node = _place(words, start, link, size, links, depths, stored, hashes, table)
                size += node == size
            link = node
            leaf = node
            start += width
        leaves[prompt] = leaf
    return spaces.size, size
