"""Block identity: the only place that hashes tokens.

A block is `block_size` consecutive token ids. Its hash chains its parent's, so it names the whole
prefix that ends there, and the chain's root names everything else that the KV values depend on.
Only full blocks have an identity. xxh3 is fast, not cryptographic: whoever serves a block must
also compare its token ids.
"""

from collections.abc import Iterator
from typing import NewType

import numpy as np
import xxhash
from numpy.typing import NDArray

BlockHash = NewType("BlockHash", bytes)
"""16 bytes: xxh3-128 over (parent digest, little-endian uint32 token ids)."""

TokenIds = NDArray[np.uint32]
"""Token ids, shape [n]."""

DEFAULT_BLOCK_SIZE = 32


def namespace(*parts: str | int) -> BlockHash:
    """Root of a hash chain: model fingerprint, tokenizer fingerprint, block size, tenant salt, ...

    Parts are length-prefixed, so ("ab", "c") and ("a", "bc") differ.
    """
    encoded = [str(part).encode() for part in parts]
    joined = b"".join(len(part).to_bytes(4, "little") + part for part in encoded)
    return BlockHash(xxhash.xxh3_128_digest(joined))


def child_hash(parent: BlockHash, tokens: TokenIds) -> BlockHash:
    """Hash of one full block below `parent`. tokens: uint32 [block_size]."""
    return BlockHash(xxhash.xxh3_128_digest(parent + tokens.astype("<u4", copy=False).tobytes()))


def hash_blocks(tokens: TokenIds, block_size: int, root: BlockHash) -> Iterator[BlockHash]:
    """Chained hashes of the full blocks of `tokens` [n], front to back; a partial tail has none."""
    data = np.ascontiguousarray(tokens, dtype="<u4").tobytes()
    parent = root
    for start in range(0, len(tokens) // block_size * block_size * 4, block_size * 4):
        parent = BlockHash(xxhash.xxh3_128_digest(parent + data[start : start + block_size * 4]))
        yield parent


def reusable_blocks(n_tokens: int, block_size: int) -> int:
    """Most blocks of an n-token prompt that a cache can serve: the last token is always computed."""
    return max(n_tokens - 1, 0) // block_size


def fingerprint(*chunks: bytes | bytearray | memoryview) -> str:
    """Hex digest that names some content (a tokenizer, a slot); 128 bits, not cryptographic."""
    hasher = xxhash.xxh3_128()
    for chunk in chunks:
        hasher.update(len(chunk).to_bytes(8, "little"))
        hasher.update(chunk)
    return hasher.hexdigest()
