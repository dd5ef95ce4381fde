"""The workload: a log as columns over a trie of its prompts' blocks, in order of arrival.

What a prompt shares with others is decided by the tree alone, so figures about reuse are taken from runs of
blocks (`kvtool.analysis.runs`); replays, plans and models take blocks one by one, as a `Workload` has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import types
from numpy.typing import NDArray

from kvtool.blocks import BlockHash, TokenIds, child_hash, namespace
from kvtool.compiling import njit

Space = tuple[str | None, str | None]
"""(model, tenant): requests of different spaces never share a block."""

META = pa.schema(
    [("id", pa.large_string()), ("file", pa.dictionary(pa.int32(), pa.string())), ("row", pa.int64())]
)
"""Where each request came from. id: null where it is `file:row`, as for most logs it is."""


@dataclass(frozen=True)
class PromptTree:
    """r requests in order of arrival over a tree of n nodes, each a block or a run of them. Arrays are
    read-only by convention.

    arrival: µs UTC, -1 unknown; session: -1 none; output_tokens: -1 unknown. leaf: deepest node of the
    prompt, -1 if it has no full block; partial: that node is a trace's partial last block.
    parent: -1 for a first node, always a smaller number than the node's own. depth: of a node's last block,
    0 for a prompt's first. ready_made: blocks have a trace's ids and no tokens.
    """

    block_size: int
    ready_made: bool
    encoder_fingerprint: str
    arrival: NDArray[np.int64]
    session: NDArray[np.int32]
    session_names: Sequence[str]
    space: NDArray[np.int32]
    spaces: Sequence[Space]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    leaf: NDArray[np.int32]
    partial: NDArray[np.bool_]
    parent: NDArray[np.int32]
    depth: NDArray[np.int32]
    node_space: NDArray[np.int32]
    meta: pa.Table

    @property
    def requests(self) -> int:
        """How many requests."""
        return len(self.leaf)

    @property
    def above(self) -> NDArray[np.int32]:
        """Blocks above each node, int32 [n]."""
        return np.append(self.depth, np.int32(-1))[self.parent] + np.int32(1)

    @property
    def distinct_blocks(self) -> int:
        """How many distinct blocks, a trace's partial ones included."""
        return int((self.depth + 1 - self.above).sum())

    @property
    def sessions(self) -> int:
        """How many sessions have a request here."""
        return len(np.unique(self.session[self.session >= 0]))

    @property
    def ids(self) -> pa.Array:
        """Every request's id, large_string [r]."""
        places = pc.binary_join_element_wise(
            self.meta["file"].cast(pa.large_string()),
            self.meta["row"].cast(pa.large_string()),
            pa.scalar(":", pa.large_string()),
        )
        return pc.coalesce(self.meta["id"], places)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Blocks of each prompt, int64 [r]."""
        return np.append(self.depth, np.int32(-1))[self.leaf].astype(np.int64) + 1

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Request i's blocks are nodes[offsets[i] : offsets[i + 1]], int64 [r + 1]."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])

    @cached_property
    def clock(self) -> NDArray[np.float64]:
        """Seconds since the first known arrival, float64 [r], never falling; ordinals without any times."""
        if not (self.arrival >= 0).any():
            return np.arange(self.requests, dtype=np.float64)
        first = int(self.arrival[self.arrival >= 0].min())
        return np.maximum.accumulate(np.where(self.arrival >= 0, (self.arrival - first) / 1e6, 0.0))

    def select(self, first: int, last: int) -> Self:
        """Requests [first, last) over the same tree."""
        cut = slice(first, last)
        return replace(
            self,
            arrival=self.arrival[cut],
            session=self.session[cut],
            space=self.space[cut],
            prompt_tokens=self.prompt_tokens[cut],
            output_tokens=self.output_tokens[cut],
            leaf=self.leaf[cut],
            partial=self.partial[cut],
            meta=self.meta.slice(first, last - first),
        )

    def root(self, space: int) -> BlockHash:
        """What the hashes of a space's first blocks are chained from."""
        model, tenant = self.spaces[space]
        return namespace("kvtool.analysis", self.encoder_fingerprint, self.block_size, repr((model, tenant)))


@dataclass(frozen=True)
class Workload(PromptTree):
    """A log over its n distinct blocks. words: the block's token ids, or a ready-made trace's block id as two
    words, uint32 [n, width]."""

    words: NDArray[np.uint32]

    @property
    def distinct_blocks(self) -> int:
        """How many distinct blocks, a trace's partial ones included."""
        return len(self.parent)

    @cached_property
    def nodes(self) -> NDArray[np.int32]:
        """Every request's node ids, front to back, int32 [sum of lengths]."""
        out = np.empty(int(self.offsets[-1]), np.int32)
        _expand(self.leaf, self.parent, self.offsets, out)
        return out

    @cached_property
    def hashes(self) -> NDArray[np.uint8]:
        """BlockHash of every node, uint8 [n, 16], chained from each space's root."""
        roots = [self.root(index) for index in range(len(self.spaces))]
        digests = bytearray()  # not a list of objects: there may be many millions
        for words, parent, space in zip(self.words, self.parent, self.node_space, strict=True):
            above = roots[space] if parent < 0 else BlockHash(bytes(digests[16 * parent : 16 * parent + 16]))
            digests += child_hash(above, words)
        return np.frombuffer(bytes(digests), np.uint8).reshape(-1, 16)

    def hash_of(self, node: int) -> BlockHash:
        """BlockHash of one node, from its own path only."""
        digest = self.root(int(self.node_space[node]))
        for ancestor in self.path_of(node):
            digest = child_hash(digest, self.words[ancestor])
        return digest

    def path_of(self, node: int) -> list[int]:
        """Node ids from the first block down to `node`."""
        path = []
        while node >= 0:
            path.append(node)
            node = int(self.parent[node])
        return path[::-1]

    def tokens_of(self, node: int) -> TokenIds:
        """Token ids of one block, uint32 [block_size]."""
        assert not self.ready_made, "a block-id trace has no tokens"
        block: TokenIds = self.words[node]
        return block

    def prefix_of(self, node: int) -> TokenIds:
        """Token ids of the whole prefix that ends with `node`."""
        assert not self.ready_made, "a block-id trace has no tokens"
        prefix: TokenIds = np.ravel(self.words[self.path_of(node)])
        return prefix


@njit(types.void(types.int32[::1], types.int32[::1], types.int64[::1], types.int32[::1]), cache=True)
def _expand(leaf: Any, parent: Any, offsets: Any, out: Any) -> None:
    for request in range(leaf.size):
        node = leaf[request]
        for at in range(offsets[request + 1] - 1, offsets[request] - 1, -1):
            out[at] = node
            node = parent[node]
