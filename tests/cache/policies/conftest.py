"""Leaf-only eviction written plainly: the reference that every policy's compiled replay must equal."""

import json
from pathlib import Path

import numpy as np
import pytest

from kvtool.analysis.build import build_workload
from kvtool.analysis.replay import replay
from kvtool.cache.policies import POLICIES
from kvtool.cache.pool import Pool
from kvtool.requests import BlockIds, Request, Source

SAMPLE = Path(__file__).parents[3] / "samples/mooncake-conversation.jsonl"


class PlainCache:
    """Blocks are (space of) prefixes named by node ids; statistics live in dictionaries.

    rank(node) -> key; statistics: turn, count, stay, birth, depth, age.
    Ties: older turn, then deeper, then id.
    """

    def __init__(self, capacity, rank, parent, depth):
        self.capacity, self.rank, self.parent, self.depth = capacity, rank, parent, depth
        self.resident, self.key, self.turn = set(), {}, {}
        self.count, self.stay, self.birth, self.age, self.now = {}, {}, {}, 0.0, 0
        self.evicted = []

    def serve(self, path):
        for node in path:
            self.count[node] = self.count.get(node, 0) + 1
            self.stay[node] = self.stay.get(node, 0) + 1 if node in self.resident else 1
            self.birth[node] = self.birth[node] if node in self.resident else self.now
            self.turn[node] = self.now
            self.key[node] = self.rank(self, node)
        self.now += 1
        hit = next((i for i, node in enumerate(path) if node not in self.resident), len(path))
        held = set(path[:hit])
        for node in path[hit:]:
            if len(self.resident) == self.capacity and not self.evict(held):
                break
            self.resident.add(node)
            held.add(node)
        return hit

    def evict(self, held):
        parents = {self.parent[node] for node in self.resident}
        leaves = [node for node in self.resident if node not in held and node not in parents]
        if not leaves:
            return False
        victim = min(leaves, key=lambda node: (self.key[node], self.turn[node], -self.depth[node], node))
        self.age = self.key[victim]
        self.resident.remove(victim)
        self.evicted.append(victim)
        return True


def workload_of(paths):
    """Prompts as tuples of symbols, one block of 4 tokens each."""
    names = {}
    requests = [
        Request(
            id=str(row),
            source=Source("t", row),
            block_ids=BlockIds(
                np.array([names.setdefault(tuple(path[: i + 1]), len(names)) for i in range(len(path))]),
                4,
                4 * len(path),
            ),
        )
        for row, path in enumerate(paths)
    ]
    return build_workload(requests, None, 4)


@pytest.fixture(scope="session")
def plain():
    """(workload, capacity, rank) -> (matched blocks per request, evicted nodes in order)."""

    def run(workload, capacity, rank):
        cache = PlainCache(capacity, rank, workload.parent.tolist(), workload.depth.tolist())
        matched = [
            cache.serve(workload.nodes[workload.offsets[i] : workload.offsets[i + 1]].tolist())
            for i in range(workload.requests)
        ]
        return matched, cache.evicted

    return run


@pytest.fixture(scope="session")
def agrees(plain):
    """Asserts that a policy replays random and given logs as its rank says, also through the Pool."""

    def check(name, rank, paths, capacity):
        workload = workload_of(paths)
        policy = POLICIES.load(name)
        matched, evicted = plain(workload, capacity, rank)
        assert replay(workload, policy, capacity).tolist() == matched
        pool = Pool(capacity, policy)
        for parent in workload.parent.tolist():
            pool.add_node(parent)
        left, hits = [], []
        for request in range(workload.requests):
            path = workload.nodes[workload.offsets[request] : workload.offsets[request + 1]].tolist()
            lease = pool.acquire(path[:capacity], len(path[:capacity]), float(request))
            assert lease is not None
            pool.commit(lease, len(path[:capacity]))
            left += [node for node, _ in lease.evicted]
            hits.append(lease.hit)
            pool.release(lease)
            pool.check()
        if all(len(path) <= capacity for path in paths):
            assert (hits, left) == (matched, evicted)

    return check


@pytest.fixture(scope="session")
def sample():
    """The first 500 requests of the Mooncake conversation trace."""
    rows = [json.loads(line) for line in SAMPLE.read_text().splitlines()]
    return build_workload(
        [
            Request(
                id="",
                source=Source("sample", number),
                arrival=row["timestamp"] * 1000,
                block_ids=BlockIds(np.array(row["hash_ids"]), 512, row["input_length"]),
            )
            for number, row in enumerate(rows)
        ],
        None,
    )


@pytest.fixture(scope="session")
def hits(sample):
    """(policy, share) -> hit blocks of the sample trace, replayed with that share of its distinct blocks."""

    def run(name, share):
        return int(replay(sample, POLICIES.load(name), round(share * sample.distinct_blocks)).sum())

    return run


@pytest.fixture(scope="session")
def workload():
    """Paths of symbols -> a workload whose node ids follow first use."""
    return workload_of
