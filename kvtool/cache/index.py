"""From token ids to dense node ids, for the runtime: the hash finds a block, its tokens decide.

A collision (xxh3 is not cryptographic) costs a miss, never a wrong answer. The index is bounded: `trim`
forgets ghosts, blocks that are in no tier and that nobody refers to, the longest unused first.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvtool.blocks import BlockHash, TokenIds, child_hash, namespace
from kvtool.cache.tiers import TieredPool

FindRow = Callable[[BlockHash, TokenIds], int]
"""The shards' row of a block, -1 if they do not have it; compares the tokens."""


def no_shards(block: BlockHash, tokens: TokenIds) -> int:
    """Where there are no shards."""
    return -1


class Public(Protocol):
    """Blocks that every tenant may share, as chains below a root of their own."""

    @property
    def root(self) -> BlockHash:
        """Where public chains begin."""
        ...

    def has(self, block: BlockHash, tokens: TokenIds) -> bool:
        """Whether the block is public; compares the tokens."""
        ...


class BlockIndex:
    """Identities of the blocks of one model; `limit` bounds those that `trim` leaves.

    A block of another root than its parent's, a tenant's own one below a public one, is named by both, so
    that tenants share what is public, and physically, and nothing below it.
    """

    def __init__(self, pool: TieredPool, block_size: int, limit: int, shard_row: FindRow = no_shards) -> None:
        self.block_size = block_size
        self.limit = limit
        self.public: Public | None = None
        self.collisions = 0
        self._pool = pool
        self._shard_row = shard_row
        self._nodes: dict[bytes, int] = {}
        self._free: list[int] = []
        self._hashes = np.zeros((1024, 16), np.uint8)
        self._tokens = np.zeros((1024, block_size), np.uint32)
        self._roots: list[BlockHash] = []

    def __len__(self) -> int:
        return len(self._nodes)

    def chain(self, tokens: TokenIds, root: BlockHash, public: int = 0) -> list[int]:
        """Nodes of the full blocks of `tokens` [n], front to back, made where they are new.

        Of the first `public` blocks the leading ones that are public belong to all, the rest to `root`.

        Shorter than n // block_size where a block's hash belongs to other tokens: from there on the
        prompt has no identity and is computed without being shared.
        """
        nodes: list[int] = []
        for start in range(0, len(tokens) // self.block_size * self.block_size, self.block_size):
            parent, block = nodes[-1] if nodes else -1, tokens[start : start + self.block_size]
            shared = self._public_root(parent, block) if len(nodes) < public else None
            public = public if shared is not None else 0
            node = self.child(parent, block, root if shared is None else shared)
            if node is None:
                break
            nodes.append(node)
        return nodes

    def child(self, parent: int, tokens: TokenIds, root: BlockHash) -> int | None:
        """The node of one full block below `parent` (-1: first block under `root`); None on a collision."""
        block = child_hash(self._above(parent, root), tokens)
        node = self._nodes.get(block)
        if node is None:
            return self._add(block, parent, tokens, root)
        same = int(self._pool.device.state.parent[node]) == parent and self._roots[node] == root
        if same and np.array_equal(self._tokens[node], tokens):
            return node
        self.collisions += 1
        return None

    def _above(self, parent: int, root: BlockHash) -> BlockHash:
        """What a block's hash chains."""
        if parent < 0:
            return root
        own = self._roots[parent] == root
        return self.hash_of(parent) if own else namespace(root.hex(), self.hash_of(parent).hex())

    def _public_root(self, parent: int, tokens: TokenIds) -> BlockHash | None:
        """The public root if a block below `parent`, public itself, is public."""
        if self.public is None:
            return None
        root = self.public.root
        return root if self.public.has(child_hash(self._above(parent, root), tokens), tokens) else None

    def find(self, block: BlockHash) -> int | None:
        """The node of a hash that is known."""
        return self._nodes.get(block)

    def hash_of(self, node: int) -> BlockHash:
        """The block's hash, 16 bytes."""
        return BlockHash(self._hashes[node].tobytes())

    def tokens_of(self, node: int) -> TokenIds:
        """The block's token ids, uint32 [block_size]."""
        tokens: TokenIds = self._tokens[node].copy()
        return tokens

    def parent_of(self, node: int) -> tuple[int, int]:
        """(parent node or -1, depth)."""
        state = self._pool.device.state
        return int(state.parent[node]), int(state.depth[node])

    def path(self, node: int | None) -> list[int]:
        """The chain that ends with `node`, front to back; empty for None."""
        path: list[int] = []
        while node is not None and node >= 0:
            path.append(node)
            node = int(self._pool.device.state.parent[node])
        return path[::-1]

    def root_of(self, node: int) -> BlockHash:
        """The root of the chain that the block belongs to."""
        return self._roots[node]

    def known(self) -> list[int]:
        """All nodes that have an identity, ascending."""
        return sorted(self._nodes.values())

    def trim(self, referred: Iterable[int]) -> int:
        """Forget ghosts down to `limit`; resident blocks, `referred` ones and their ancestors stay.

        Returns how many were forgotten. Their ids are used again: nobody may keep one.
        """
        if len(self._nodes) <= self.limit:
            return 0
        state = self._pool.device.state
        known = np.array(self.known())
        keep = np.zeros(self._pool.device.nodes + 1, np.bool_)  # the last one stands for "no parent"
        keep[:-1] = self._pool.resident()
        keep[np.fromiter(referred, np.int64)] = True
        ghosts = known[~keep[known]]
        spare = max(self.limit * 3 // 4 - (len(known) - len(ghosts)), 0)  # forget in batches
        keep[ghosts[np.argsort(-state.turn[ghosts], kind="stable")][:spare]] = True
        frontier: NDArray[np.intp] = np.flatnonzero(keep[:-1])
        while len(frontier):
            parents = np.unique(state.parent[frontier]).astype(np.intp)
            frontier = parents[~keep[parents] & (parents >= 0)]
            keep[frontier] = True
        forgotten = known[~keep[known]]
        for node in forgotten.tolist():
            del self._nodes[self.hash_of(node)]
            self._free.append(node)
        return len(forgotten)

    def _add(self, block: BlockHash, parent: int, tokens: TokenIds, root: BlockHash) -> int:
        row = self._shard_row(block, tokens)
        if self._free:
            node = self._free.pop()
            self._pool.renew_node(node, parent, row)
            self._roots[node] = root
        else:
            node = self._pool.add_node(parent, row)
            self._roots.append(root)
            if node == len(self._tokens):
                self._hashes = np.concatenate([self._hashes, np.zeros_like(self._hashes)])
                self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
        self._nodes[block] = node
        self._hashes[node] = np.frombuffer(block, np.uint8)
        self._tokens[node] = tokens
        return node
