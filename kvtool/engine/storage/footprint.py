"""What a folder of shards takes beside its blocks' own bytes, at most: a budget leaves room for it."""

import json
from collections.abc import Iterable

from kvtool.engine.storage.codec import BlockCodec, stored_parts
from kvtool.engine.storage.layout import BlockShape
from kvtool.engine.storage.writer import entry

FAR = 10**12
"""A place in a file that no shard reaches: its digits are the most that an entry may have."""

ROW = 128
"""Bytes of a row of the index without its tokens: 70 in a long one, more where columns are short."""

FOLDER = 8 << 10
"""The index's schema and statistics, the manifest, and what is left over in the last file."""

TENANT = 64
"""A tenant's root in the manifest, without the name."""

PER_FILE = 17
"""A file's entry in the manifest and the padding of its header are less than a 2^17th of its bytes."""


def beside_block(codec: BlockCodec, shape: BlockShape, first: bool) -> int:
    """Bytes that a block takes in its file's header and in the index."""
    header = {f"{'0' * 32}.{part.name}": entry(part, FAR) for part in stored_parts(codec, shape, first, FAR)}
    return len(json.dumps(header, separators=(",", ":"))) + 4 * shape.block_size + ROW


def beside_blocks(budget: int, tenants: Iterable[str]) -> int:
    """Bytes that a folder of at most `budget` bytes takes once, however many its blocks."""
    return FOLDER + sum(TENANT + len(json.dumps(name)) for name in tenants) + (budget >> PER_FILE)
