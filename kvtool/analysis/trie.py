"""The trie of blocks: prompts go in, equal prefixes meet.

A block is `width` uint32 words: its token ids, or a trace's ready-made id as two words. Blocks that no
prompt has told apart so far lie in one run; a run is cut where a prompt leaves it or ends within it. So
there are at most a few runs a prompt, however long prompts are, and only the words grow with the text.

The hash only finds; words are compared exactly, so two blocks are one if and only if their prefixes are
equal. Blocks are numbered in order of insertion, and a run's blocks have numbers in a row.
"""

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvtool.analysis.spool import Spool, let_go
from kvtool.compiling import njit

NO_RUN = -1

MOST_NEW = 4
"""Runs that one prompt adds at most: one cut and one tail for its whole blocks and for its partial one."""


class BlockTrie:
    """Grows as prompts are inserted. Roots carry their space (model, tenant) as parent -1 - space.

    A run keeps its number for good, and with it its end; when it is cut, its upper part is the new one.
    So the run in which a prompt ends stays the same, but a parent's number may be above its child's.
    """

    def __init__(self, width: int, runs: int = 1024) -> None:
        self.width = width
        self.size = 0
        self.blocks = 0
        self._link = np.zeros(runs, np.int32)
        self._depth = np.zeros(runs, np.int32)
        self._first = np.zeros(runs, np.int64)
        self._hash = np.zeros(runs, np.uint64)
        self._table = np.full(4 * runs, NO_RUN, np.int32)
        self._spool = Spool(16 * runs)

    def insert(
        self,
        words: NDArray[np.uint32],
        offsets: NDArray[np.int64],
        spaces: NDArray[np.int32],
        partial: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int32]:
        """Insert prompts; returns the run that each one ends with, int32 [b] (-1: not one full block).

        words: all prompts' words, concatenated; prompt i is words[offsets[i] : offsets[i + 1]], of
        which the full blocks count. spaces [b]: prompts of different spaces never share a run.
        partial [b]: whether the last block is a trace's partial one, which is a run of its own.
        """
        ends = np.empty(len(spaces), np.int32)
        own = np.zeros(len(spaces), np.bool_) if partial is None else partial
        done = 0
        while True:
            done, self.size, self.blocks = _insert(
                words, offsets, spaces, own, done, self.size, self.blocks, *self._arrays(), ends
            )
            if done == len(spaces):
                let_go(self._spool.words)
                return ends
            self._reserve(self.size + MOST_NEW, int(offsets[done + 1] - offsets[done]) // self.width)

    @property
    def link(self) -> NDArray[np.int32]:
        """Parent run, or -1 - space for a first run, int32 [n]."""
        return self._link[: self.size]

    @property
    def depth(self) -> NDArray[np.int32]:
        """Depth of each run's last block, 0 for a prompt's first block, int32 [n]."""
        return self._depth[: self.size]

    @property
    def first(self) -> NDArray[np.int64]:
        """Number of each run's first block, int64 [n]."""
        return self._first[: self.size]

    @property
    def words(self) -> NDArray[np.uint32]:
        """The blocks themselves by number, uint32 [blocks, width]."""
        return self._spool.words[: self.blocks * self.width].reshape(-1, self.width)

    def _arrays(self) -> tuple[Any, ...]:
        return self._link, self._depth, self._first, self._hash, self._table, self._spool.words, self.width

    def _reserve(self, runs: int, blocks: int) -> None:
        """Room for `runs` runs and more in the arrays and, at most half full, in the table; and for
        `blocks` more blocks."""
        self._spool.reserve((self.blocks + blocks) * self.width, self.blocks * self.width)
        if runs <= len(self._link):
            return
        room = max(runs, len(self._link) * 3 // 2)
        for name in ("_link", "_depth", "_first", "_hash"):
            old = getattr(self, name)
            new = np.zeros(room, old.dtype)
            new[: self.size] = old[: self.size]
            setattr(self, name, new)
        slots = 1 << (2 * room - 1).bit_length()
        if slots > len(self._table):
            self._table = np.full(slots, NO_RUN, np.int32)
            _rehash(self._hash, self.size, self._table)


RUNS = (types.int32[::1], types.int32[::1], types.int64[::1], types.uint64[::1], types.int32[::1])
"""link, depth, first, hash of each run, and the table that finds a run by its first block."""
STORED = (types.uint32[::1], types.int64)
"""The words of all blocks, and how many are a block."""


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
    for run in range(size):
        at = hashes[run] & mask
        while table[at] >= 0:
            at = (at + np.uint64(1)) & mask
        table[at] = run


@njit(
    types.int64(types.uint32[::1], types.int64, types.uint32[::1], types.int64, types.int64, types.int64),
    cache=True,
)
def _equal_blocks(words: Any, start: Any, stored: Any, at: Any, blocks: Any, width: Any) -> Any:
    """How many blocks from words[start] on are those from stored[at] on, `blocks` at most."""
    for i in range(blocks * width):
        if words[start + i] != stored[at + i]:
            return i // width
    return blocks


@njit(
    types.UniTuple(types.int64, 3)(
        types.uint32[::1], types.int64, types.int64, types.int64, types.int64, types.int64, *RUNS, *STORED
    ),
    cache=True,
)
def _descend(
    words: Any,
    start: Any,
    blocks: Any,
    link: Any,
    size: Any,
    used: Any,
    links: Any,
    depths: Any,
    firsts: Any,
    hashes: Any,
    table: Any,
    stored: Any,
    width: Any,
) -> Any:
    """Follow the `blocks` blocks from words[start] on below run `link`, adding what is not there: (the run
    that they end with, runs by then, blocks by then)."""
    mask = np.uint64(table.size - 1)
    while blocks > 0:
        above = np.int64(depths[link]) if link >= 0 else np.int64(-1)
        h = _block_hash(words, start, width, link)
        at = h & mask
        same = np.int64(0)
        while True:
            run = np.int64(table[at])
            if run < 0:
                break
            if hashes[run] == h and links[run] == link:
                span = depths[run] - above
                same = _equal_blocks(words, start, stored, firsts[run] * width, min(span, blocks), width)
                if same > 0:
                    break
            at = (at + np.uint64(1)) & mask
        if run < 0:
            table[at] = size
            links[size] = link
            depths[size] = above + blocks
            firsts[size] = used
            hashes[size] = h
            stored[used * width : (used + blocks) * width] = words[start : start + blocks * width]
            return size, size + 1, used + blocks
        if same < depths[run] - above:  # cut: the upper part takes the run's place, the rest hangs below
            upper = size
            size += 1
            table[at] = upper
            links[upper] = link
            depths[upper] = above + same
            firsts[upper] = firsts[run]
            hashes[upper] = h
            links[run] = upper
            firsts[run] += same
            hashes[run] = _block_hash(stored, firsts[run] * width, width, upper)
            at = hashes[run] & mask
            while table[at] >= 0:
                at = (at + np.uint64(1)) & mask
            table[at] = run
            run = upper
        link = run
        start += same * width
        blocks -= same
    return link, size, used


@njit(
    types.UniTuple(types.int64, 3)(
        types.uint32[::1],
        types.int64[::1],
        types.int32[::1],
        types.boolean[::1],
        *(types.int64,) * 3,
        *RUNS,
        *STORED,
        types.int32[::1],
    ),
    cache=True,
    nogil=True,
)
def _insert(
    words: Any,
    offsets: Any,
    spaces: Any,
    partial: Any,
    first: Any,
    size: Any,
    used: Any,
    links: Any,
    depths: Any,
    firsts: Any,
    hashes: Any,
    table: Any,
    stored: Any,
    width: Any,
    ends: Any,
) -> Any:
    """Insert prompts from `first` on, as long as there is room: (the next prompt, runs, blocks by then)."""
    for prompt in range(first, spaces.size):
        start = offsets[prompt]
        blocks = (offsets[prompt + 1] - start) // width
        if size + MOST_NEW > links.size or (used + blocks) * width > stored.size:
            return prompt, size, used
        run = np.int64(-1 - spaces[prompt])
        for part in (blocks - 1, 1) if partial[prompt] and blocks > 1 else (blocks, 0):
            run, size, used = _descend(
                words, start, part, run, size, used, links, depths, firsts, hashes, table, stored, width
            )
            start += part * width
        ends[prompt] = run if blocks > 0 else NO_RUN
    return spaces.size, size, used
