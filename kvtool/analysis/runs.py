"""Runs: a log over the runs of blocks that its prompts do not tell apart.

Every prompt that has one block of a run has all of them, so counts, hit rates and the LRU curve need runs
only, and there are a few of those a prompt, however long it is. The blocks' words may lie on disk.

The tree is built once at a small base block; coarser block sizes follow exactly, because a block of
B tokens is known if and only if the base blocks that make it up are.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Optional

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvtool.analysis.spool import let_go, spooled
from kvtool.analysis.workload import PromptTree, Workload
from kvtool.blocks import BlockHash, TokenIds, child_hash
from kvtool.compiling import njit

Numbers = NDArray[np.int64]

AT_ONCE = 1 << 20
"""Blocks whose words are put together at a time."""


class Blocks(NamedTuple):
    """Some runs' blocks: run, parent block (-1: none), depth, int32 [b]; words, uint32 [b, width]."""

    run: NDArray[np.int32]
    parent: NDArray[np.int32]
    depth: NDArray[np.int32]
    words: NDArray[np.uint32]


@dataclass(frozen=True)
class Runs(PromptTree):
    """A log over n runs. first: number of a run's first block; the others follow it, int64 [n].

    stored: words of base blocks, uint32 [any, width]. Of the tree as it was built, a run's begin at
    `first`; of a coarser one they are those of the run `origin` of `base`, int32 [n], and of runs above.
    """

    first: Numbers
    stored: NDArray[np.uint32]
    base: Optional["Runs"] = None
    origin: NDArray[np.int32] | None = None

    @property
    def words_per_block(self) -> int:
        """The token ids of a block, or the two words of a trace's block id."""
        factor = 1 if self.base is None else self.block_size // self.base.block_size
        return int(self.stored.shape[1]) * factor

    @property
    def last_blocks(self) -> Numbers:
        """Number of each run's last block, and -1 behind them, int64 [n + 1]."""
        return np.append(self.first + self.depth - self.above, -1)

    def coarser(self, block_size: int) -> "Runs":
        """The same log cut into larger blocks, exactly. `block_size` is a multiple of the present one."""
        factor = block_size // self.block_size
        assert self.base is None and block_size % self.block_size == 0
        if factor == 1:
            return self
        partial = np.zeros(len(self.parent), np.bool_)
        partial[self.leaf[self.partial]] = True
        counts, renamed = _coarsen(self.parent, self.depth, partial, factor)
        above = np.append(counts, np.int32(0))[self.parent]
        kept = np.flatnonzero(counts > above).astype(np.int32)
        sizes = (counts - above)[kept].astype(np.int64)
        return replace(
            self,
            block_size=block_size,
            leaf=renamed[self.leaf],
            partial=np.zeros_like(self.partial),
            parent=renamed[self.parent[kept]],
            depth=counts[kept] - np.int32(1),
            node_space=self.node_space[kept],
            first=np.cumsum(sizes) - sizes,
            base=self,
            origin=kept,
        )

    def unfolded(self, used: bool = False) -> Workload:
        """Block by block, which takes memory for each. used: only blocks that a request here has."""
        if used:
            keep = _ancestors(self.leaf, self.parent)
            kept = np.flatnonzero(keep).astype(np.int32)
            renamed = np.append(np.where(keep, np.cumsum(keep) - 1, -1), -1).astype(np.int32)
        else:
            kept = np.arange(len(self.parent), dtype=np.int32)
            renamed = np.append(kept, np.int32(-1))
        sizes = (self.depth + 1 - self.above)[kept].astype(np.int64)
        assert sizes.sum() < 2**31, "block numbers are int32"
        last = np.append(np.cumsum(sizes) - 1, -1)
        blocks = self._blocks(kept, 0, last[renamed[self.parent[kept]]])
        columns = {field.name: getattr(self, field.name) for field in fields(PromptTree)}
        return Workload(
            **columns
            | {
                "leaf": last[renamed[self.leaf]].astype(np.int32),
                "parent": blocks.parent,
                "depth": blocks.depth,
                "node_space": self.node_space[blocks.run],
            },
            words=blocks.words,
        )

    def pieces(self, most: int) -> Iterator[Blocks]:
        """All blocks by number, about `most` at a time: a run stays whole. At least one piece."""
        last = self.last_blocks
        number = start = 0
        while start == 0 or start < len(self.first):
            stop = max(int(np.searchsorted(last[:-1], number + most)), start + 1)
            runs = np.arange(start, min(stop, len(self.first)), dtype=np.int32)
            yield self._blocks(runs, number, last[self.parent[runs]])
            let_go(self.stored)
            number, start = int(last[runs[-1:]].sum()) + 1, stop

    def _blocks(self, runs: NDArray[np.int32], number: int, parents: Numbers) -> Blocks:
        """The blocks of `runs`, numbered from `number` on. parents: number of the block above each run."""
        above = self.above[runs]
        sizes = (self.depth[runs] + 1 - above).astype(np.int64)
        starts = np.cumsum(sizes) - sizes
        run = np.repeat(runs, sizes)
        count = int(sizes.sum())
        within = np.arange(count) - np.repeat(starts, sizes)
        depth = (np.repeat(above, sizes) + within).astype(np.int32)
        parent = np.arange(number - 1, number + count - 1)
        parent[starts] = parents
        return Blocks(run, parent.astype(np.int32), depth, self.words_of(run, depth))

    def words_of(self, run: NDArray[np.int32], depth: NDArray[np.int32]) -> NDArray[np.uint32]:
        """Words of the blocks at `depth` on the way to the end of `run`, uint32 [b, width]."""
        if self.base is None or self.origin is None:
            numbers = self.numbers_of(run, depth)
            if len(numbers) and (np.diff(numbers) == 1).all():
                return self.stored[numbers[0] : numbers[0] + len(numbers)]
            return self.stored[numbers]
        factor = self.block_size // self.base.block_size
        width = self.stored.shape[1]
        words = spooled(len(run), factor * width)
        for start in range(0, len(run), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            for piece in range(factor):
                at = depth[part] * np.int32(factor) + np.int32(piece)
                own = slice(piece * width, (piece + 1) * width)
                words[part, own] = self.base.words_of(self.origin[run[part]], at)
            let_go(words)
            let_go(self.stored)
        return words

    def numbers_of(self, run: NDArray[np.int32], depth: NDArray[np.int32]) -> Numbers:
        """Numbers of the blocks at `depth` on the way to the end of `run`, int64 [b]."""
        numbers = np.empty(len(run), np.int64)
        _numbers(run, depth, self.parent, self.depth, self.first, numbers)
        return numbers

    def path_words(self, run: int) -> NDArray[np.uint32]:
        """Words of every block down to the end of `run`, uint32 [b, width]."""
        depth = np.arange(self.depth[run] + 1, dtype=np.int32)
        return self.words_of(np.full(len(depth), run, np.int32), depth)

    def prefix_of(self, run: int) -> TokenIds:
        """Token ids of the whole prefix that ends with `run`."""
        assert not self.ready_made, "a block-id trace has no tokens"
        return np.ravel(self.path_words(run))

    def hash_of(self, run: int) -> BlockHash:
        """BlockHash of the block that `run` ends with, from its own path only."""
        digest = self.root(int(self.node_space[run]))
        for words in self.path_words(run):
            digest = child_hash(digest, words)
        return digest


def runs_of(workload: Workload) -> Runs:
    """Each block as a run of its own: to cut a workload into larger blocks."""
    columns = {field.name: getattr(workload, field.name) for field in fields(PromptTree)}
    return Runs(**columns, first=np.arange(len(workload.parent)), stored=workload.words)


@njit(
    types.Tuple((types.int32[::1], types.int32[::1]))(
        types.int32[::1], types.int32[::1], types.boolean[::1], types.int64
    ),
    cache=True,
)
def _coarsen(parent: Any, depth: Any, partial: Any, factor: Any) -> Any:
    """Whole coarse blocks down to each run's end, and the coarse run that ends there ([-1]: none)."""
    counts = np.zeros(parent.size, np.int32)
    renamed = np.full(parent.size + 1, -1, np.int32)
    kept = 0
    for run in range(parent.size):
        above = counts[parent[run]] if parent[run] >= 0 else 0
        counts[run] = above if partial[run] else (depth[run] + 1) // factor
        if counts[run] > above:
            renamed[run] = kept
            kept += 1
        elif parent[run] >= 0:
            renamed[run] = renamed[parent[run]]
    return counts, renamed


@njit(types.boolean[::1](types.int32[::1], types.int32[::1]), cache=True)
def _ancestors(leaf: Any, parent: Any) -> Any:
    """Which runs lie on the way to one of the leaves."""
    keep = np.zeros(parent.size, np.bool_)
    for request in range(leaf.size):
        run = leaf[request]
        while run >= 0 and not keep[run]:
            keep[run] = True
            run = parent[run]
    return keep


@njit(
    types.void(
        types.int32[::1],
        types.int32[::1],
        types.int32[::1],
        types.int32[::1],
        types.int64[::1],
        types.int64[::1],
    ),
    cache=True,
)
def _numbers(run: Any, depth: Any, parent: Any, deepest: Any, first: Any, out: Any) -> None:
    for at in range(run.size):
        own = run[at]
        while parent[own] >= 0 and depth[at] <= deepest[parent[own]]:
            own = parent[own]
        above = deepest[parent[own]] if parent[own] >= 0 else -1
        out[at] = first[own] + depth[at] - above - 1
