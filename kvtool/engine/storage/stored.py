"""The blocks of a shard directory as the simulator takes them: what a server would start with."""

import numpy as np

from kvtool.analysis.resident import Stored
from kvtool.engine.storage.shards import ShardSet


def stored_blocks(shards: ShardSet) -> Stored:
    """Tokens, parents and expected hits of every block; a tenant is known by the root of its chains."""
    size = shards.manifest.identity.shape.block_size
    rows = sorted(shards.rows, key=lambda row: row.depth)
    number = {row.hash: at for at, row in enumerate(rows)}
    tenant_of = {root: tenant for tenant, root in shards.manifest.roots.items()}
    tenants: list[str] = []
    parents: list[int] = []
    for row in rows:
        above = number.get(row.parent, -1)
        parents.append(above)
        tenants.append(tenant_of[row.parent] if above < 0 else tenants[above])
    words = np.array([row.tokens for row in rows], np.uint32).reshape(len(rows), size)
    hits = np.array([row.expected_hits for row in rows])
    return Stored(size, words, np.array(parents, np.int64), tenants, hits)
