"""Every registered policy: golden hits of the sample trace; the pool serves and evicts as the replay does."""

import pytest

from kvtool.analysis.replay import replay
from kvtool.cache.policies import POLICIES
from kvtool.cache.pool import Pool

SHARES = (0.15, 0.3, 0.5)

GOLDEN = {
    "cost": [575, 909, 1599],
    "fifo": [575, 909, 1563],
    "fitted": [575, 909, 1599],
    "gdsf": [546, 1045, 1808],
    "lfu": [585, 923, 1609],
    "lfu-da": [575, 923, 1599],
    "lru": [575, 909, 1573],
    "sieve": [585, 923, 1609],
}
"""Hit blocks with these shares of the distinct blocks; `fitted` has no model here."""


def test_every_policy_has_golden_hits():
    assert sorted(GOLDEN) == sorted(POLICIES.names())


@pytest.mark.parametrize("name", POLICIES.names())
def test_hits_are_golden(hits, name):
    assert [hits(name, share) for share in SHARES] == GOLDEN[name]


@pytest.mark.parametrize("name", POLICIES.names())
def test_the_pool_serves_what_the_replay_serves(sample, name):
    """A part of the trace with room for its longest prompt and little more."""
    part = sample.select(0, 120)
    paths = [part.nodes[part.offsets[i] : part.offsets[i + 1]].tolist() for i in range(part.requests)]
    capacity = max(map(len, paths)) + 40
    pool = Pool(capacity, POLICIES.load(name))
    for parent in part.parent.tolist():
        pool.add_node(parent)
    matched, evicted = [], []
    for path, now in zip(paths, part.clock.tolist(), strict=True):
        lease = pool.acquire(path, len(path), now)
        assert lease is not None
        matched.append(lease.hit)
        evicted += lease.evicted
        pool.commit(lease, len(path))
        pool.release(lease)
        pool.check()
    assert matched == replay(part, POLICIES.load(name), capacity).tolist()
    assert len(evicted) > 100
    assert sum(map(len, paths)) - sum(matched) - len(evicted) == (pool.state.owner >= 0).sum() == capacity
