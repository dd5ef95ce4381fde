"""Hot prefixes: what the cache holds that most requests begin with, as the live page shows it."""

from typing import Any

import numpy as np

from kvtool.cache.core import sharer_estimate
from kvtool.cache.index import BlockIndex
from kvtool.cache.tiers import TieredPool
from kvtool.tokens import Tokenizer


def hot_prefixes(
    pool: TieredPool, index: BlockIndex, tokenizer: Tokenizer, most: int
) -> list[dict[str, Any]]:
    """The `most` prefixes that saved the most tokens, uses x tokens, of those that two requests or more used.

    A prefix ends where prompts part: at a block that was used more often than any of those below it.
    """
    state, nodes = pool.device.state, pool.device.nodes
    held = pool.resident()
    uses = np.where(held, state.touches[:nodes], 0.0)
    below = np.zeros(nodes + 1)
    np.maximum.at(below, state.parent[:nodes], uses)
    ends = np.flatnonzero((uses >= 2) & (uses > below[:nodes]))
    worth = uses[ends] * (state.depth[ends] + 1)
    found = []
    for node in ends[np.lexsort((ends, -worth))][:most].tolist():
        tier = pool.tier_of(node)
        assert tier is not None
        path = index.path(node)
        found.append(
            {
                "hash": index.hash_of(node).hex(),
                "tokens": len(path) * index.block_size,
                "uses": int(uses[node]),
                "sessions": round(float(sharer_estimate(state.sharers[node]))),
                "tier": tier.name.lower(),
                "begins": tokenizer.decode(index.tokens_of(path[0]).tolist()),
                "ends": tokenizer.decode(index.tokens_of(node).tolist()),
            }
        )
    return found
