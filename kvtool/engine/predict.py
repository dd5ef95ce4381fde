"""What our own server's cache should find for a replayed log: the same pool, driven without a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvtool.blocks import BlockHash, TokenIds, reusable_blocks
from kvtool.cache.index import BlockIndex
from kvtool.cache.policies import POLICIES
from kvtool.cache.policies.fitted import in_use
from kvtool.cache.policy import Policy
from kvtool.cache.tiers import TieredPool


@dataclass(frozen=True, slots=True)
class Answered:
    """A request as the server saw it: prompt ids, tokens it answered with, arrival in seconds, session."""

    prompt: TokenIds
    completion: int
    at: float
    session: str | None


def policy_of(document: Mapping[str, Any]) -> Policy:
    """The policy that /kv/policy describes; what `fitted` has learned stands in its parameters."""
    known = POLICIES.load(str(document["name"]))
    parameters = tuple(float(number) for number in document["parameters"])
    if document["ages"]:
        return Policy(known.name, in_use, parameters, ages=True)
    return replace(known, parameters=parameters)


def predict(
    requests: Sequence[Answered], stats: Mapping[str, Any], policy: Policy, stored: set[str]
) -> list[int]:
    """Prompt tokens of each request that the cache serves, one request after the other.

    stats: /kv/stats before the replay, for capacities. stored: hashes (hex) that the server has in some tier
    by then; they are taken to stay there, as shards do.
    """
    size = int(stats["block_size"])
    tiers = {name: int(tier["capacity"]) for name, tier in stats["tiers"].items()}
    encodes = stats.get("tier_codec", "raw") != stats.get("device_codec", "raw")
    pool = TieredPool(policy, tiers["device"], tiers.get("host", 0), tiers.get("disk", 0), encodes)
    root = BlockHash(bytes.fromhex(stats["root"]))
    index = BlockIndex(pool, size, 1 << 62, lambda block, _: 0 if block.hex() in stored else -1)
    found: list[int] = []
    unseen = 1 << 32  # what was answered is not known: each of its blocks is like no other
    for request in requests:
        nodes = index.chain(request.prompt, root)
        tokens = len(request.prompt)
        lease = pool.acquire(
            nodes, -(-tokens // size), request.at, request.session, reusable_blocks(tokens, size)
        )
        assert lease is not None, "one request at a time always fits: the server took it"
        pool.settle(lease, len(lease.loads))
        found.append((lease.hit + lease.loaded) * size)
        pool.commit(lease, len(nodes))
        computed = tokens + max(request.completion - 1, 0)  # the last chosen token is never computed
        while len(lease.slots) * size < computed and pool.extend(lease, 1):
            pass
        for _ in range(min(computed // size, len(lease.slots)) - len(lease.nodes)):
            unseen -= 1
            block = np.full(size, unseen, np.uint32)
            node = index.child(lease.nodes[-1] if lease.nodes else -1, block, root)
            assert node is not None
            pool.append(lease, node, request.at, request.session)
            pool.commit(lease, len(lease.nodes))
        pool.release(lease, request.completion)
        pool.take_moves()
    return found
