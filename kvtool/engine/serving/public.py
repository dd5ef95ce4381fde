"""Public prefixes: the system prompts and tool schemas that all tenants may share.

A block is public if the operator made it so, by prewarming it for no tenant in particular or by pinning it as
public, and if it lies in the part of the request that system prompt and tools make. What users say is never
shared, not even if it is in the shards; and whether a public block is a hit depends on no other tenant.
"""

from collections.abc import Iterable

import numpy as np

from kvtool.blocks import BlockHash, TokenIds
from kvtool.cache.index import BlockIndex
from kvtool.engine.storage.shards import ShardSet


class PublicPrefixes:
    """Blocks by hash, with their tokens: the hash finds, the tokens decide."""

    def __init__(self, root: BlockHash, shards: ShardSet | None) -> None:
        self._root = root
        self._tokens: dict[BlockHash, TokenIds] = {}
        for row in sorted(shards.rows, key=lambda row: row.depth) if shards is not None else ():
            if row.parent == root or row.parent in self._tokens:
                self._tokens[row.hash] = row.tokens

    @property
    def root(self) -> BlockHash:
        """Where the chains of those without a tenant begin."""
        return self._root

    def __len__(self) -> int:
        return len(self._tokens)

    def has(self, block: BlockHash, tokens: TokenIds) -> bool:
        """Whether the block is public."""
        found = self._tokens.get(block)
        return found is not None and np.array_equal(found, tokens)

    def add(self, index: BlockIndex, nodes: Iterable[int]) -> None:
        """From now on these blocks of the public root are public."""
        for node in nodes:
            assert index.root_of(node) == self._root
            self._tokens[index.hash_of(node)] = index.tokens_of(node)
