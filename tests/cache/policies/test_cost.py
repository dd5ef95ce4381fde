"""cost: its rank, equal to a plain simulation; golden hits; each factor by hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.cache.policies import POLICIES
from kvtool.cache.pool import Pool

PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=25)


def rank(cache, node):
    score = 0.2 * math.log(cache.count[node]) + 0.05 * math.log1p(0.01917 * cache.depth[node])
    return cache.now / 100 + score


@settings(deadline=None, max_examples=50)
@given(PATHS, st.integers(1, 9))
def test_replays_as_the_plain_cache_does(agrees, paths, capacity):
    agrees("cost", rank, paths, capacity)


def test_golden_hits(hits, plain, sample):
    found = [hits("cost", share) for share in (0.15, 0.3, 0.5)]
    for share, hit in zip((0.15, 0.3, 0.5), found, strict=True):
        assert sum(plain(sample, round(share * sample.distinct_blocks), rank)[0]) == hit
    assert all(hit >= 0.99 * hits("lru", share) for share, hit in zip((0.15, 0.3, 0.5), found, strict=True))


def test_each_factor_by_hand():
    policy = POLICIES.load("cost")

    def key(turn=10.0, count=2.0, sharers=1.0, depth=0.0):
        return policy.key(0.0, turn, count, 1.0, 0.0, 0.0, sharers, depth, 0.0, policy.parameter_array())

    assert key(turn=110.0) - key() == pytest.approx(1.0)
    assert key(count=6.0) - key() == pytest.approx(0.2 * math.log(3))
    assert key(sharers=5.0) - key() == pytest.approx(0.2 * math.log(5))
    assert key(sharers=0.0) == key(), "a log without sessions has no sharing to count"
    assert key(depth=100.0) - key() == pytest.approx(0.05 * math.log(1 + 1.917))


def test_a_block_shared_by_sessions_outlives_one_used_as_often_and_later():
    pool = Pool(2, POLICIES.load("cost"))
    shared, own, new = (pool.add_node(-1) for _ in range(3))
    evicted = []
    for node, session in [(shared, "a"), (shared, "b"), (own, "c"), (own, "c"), (new, "d")]:
        lease = pool.acquire([node], 1, 0.0, session)
        assert lease is not None
        pool.commit(lease, 1)
        evicted += [node for node, _ in lease.evicted]
        pool.release(lease)
    assert evicted == [own]
