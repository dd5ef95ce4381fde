"""Replay over tiers: equal to sections of the LRU curve and to the runtime's own TieredPool."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.analysis.build import build_workload
from kvtool.analysis.curve import LruCurve
from kvtool.analysis.replay import replay
from kvtool.analysis.resident import resident_in, stored_of
from kvtool.analysis.tiered import replay_tiers
from kvtool.analysis.waits import STUMP
from kvtool.cache.policies import POLICIES, fitted
from kvtool.cache.tiers import Tier, TieredPool
from kvtool.requests import BlockIds, Request, Source

PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=30)


def log(paths, seconds=1):
    """Prompts as lists of symbols, one block of 4 tokens each."""
    names, requests = {}, []
    for row, path in enumerate(paths):
        ids = [names.setdefault(tuple(path[: i + 1]), len(names)) for i in range(len(path))]
        requests.append(
            Request(
                id=str(row),
                source=Source("t", row),
                arrival=row * seconds * 1_000_000,
                block_ids=BlockIds(np.array(ids), 4, 4 * len(ids)),
            )
        )
    return build_workload(requests, None)


@settings(max_examples=80, deadline=None)
@given(PATHS, st.lists(st.integers(4, 9), min_size=1, max_size=4))
def test_under_lru_capacities_add_up(paths, sizes):
    workload = log(paths)
    served = replay_tiers(workload, POLICIES.load("lru"), sizes).served.sum(axis=0)
    curve = LruCurve(workload)
    assert np.cumsum(served).tolist() == [curve.at(sum(sizes[: n + 1])).hit_blocks for n in range(len(sizes))]


def by_the_runtime(workload, policy, sizes):
    """Blocks served and written by tier, of a TieredPool that computes what is missing and ends at once."""
    pool = TieredPool(policy, *sizes)
    for parent in workload.parent.tolist():
        pool.add_node(parent)
    tiers = [Tier.DEVICE, *pool.lower]
    served, written = [], []
    for request, now in enumerate(workload.clock.tolist()):
        path = workload.nodes[workload.offsets[request] : workload.offsets[request + 1]].tolist()
        lease = pool.acquire(path, len(path), now)
        assert lease is not None
        moves = pool.take_moves()
        sources = [Tier.DEVICE] * lease.hit + [move.source for move in lease.loads]
        served.append([sources.count(tier) for tier in tiers])
        written.append([len(path) - lease.hit] + [sum(m.target == t for m in moves) for t in tiers[1:]])
        pool.settle(lease, len(lease.loads))
        pool.commit(lease, len(path))
        pool.release(lease)
        pool.check()
    return served, written


@pytest.mark.parametrize("name", [*POLICIES.names(), "aging"])
@settings(max_examples=25, deadline=None)
@given(PATHS, st.lists(st.integers(4, 7), min_size=1, max_size=3))
def test_it_does_what_the_runtimes_tiers_do(name, paths, sizes):
    workload = log(paths)
    policy = fitted.by_table(STUMP, 4) if name == "aging" else POLICIES.load(name)
    tiered = replay_tiers(workload, policy, sizes, keeps=[True, False, True][: len(sizes)])
    assert (tiered.served.tolist(), tiered.written.tolist()) == by_the_runtime(workload, policy, sizes)


@settings(max_examples=60, deadline=None)
@given(PATHS, st.integers(4, 6), st.integers(1, 9), st.integers(1, 3))
def test_a_lower_tier_takes_only_what_was_asked_for_often(paths, device, host, admit):
    workload = log(paths)
    lru = POLICIES.load("lru")
    plain, choosy = (replay_tiers(workload, lru, [device, host], admit=n) for n in (1, admit))
    assert (plain.served[:, 0] == choosy.served[:, 0]).all(), "the first tier computes what it computes"
    assert choosy.written[:, 1].sum() <= plain.written[:, 1].sum()
    uses = np.zeros(workload.distinct_blocks, int)
    for request in range(workload.requests):
        path = workload.nodes[workload.offsets[request] : workload.offsets[request + 1]]
        above = choosy.served[request, 0]
        lower = path[above : above + choosy.served[request, 1]]
        assert (uses[lower] >= admit).all(), "a block came from where it had not been taken"
        uses[path] += 1


def test_what_is_asked_for_once_is_not_written_down():
    """a is used twice, b to e once: of all that the one slot loses, only a is worth a write."""
    workload = log([[1], [1], [2], [3], [4], [5], [1]])
    lru = POLICIES.load("lru")
    assert replay_tiers(workload, lru, [1, 2]).written[:, 1].sum() == 5
    choosy = replay_tiers(workload, lru, [1, 2], admit=2)
    assert choosy.written[:, 1].sum() == 1 and choosy.served[-1].tolist() == [0, 1]


def test_a_copy_that_stays_takes_room_and_saves_a_write():
    workload = log([[1], [2], [1], [2], [1]])
    lru = POLICIES.load("lru")
    moved, kept = (replay_tiers(workload, lru, [1, 2], keeps) for keeps in ([], [False, True]))
    assert moved.served.sum(axis=0).tolist() == kept.served.sum(axis=0).tolist() == [0, 3]
    assert (moved.written[:, 1].sum(), kept.written[:, 1].sum()) == (4, 2)


@pytest.mark.parametrize("name", [*POLICIES.names(), "aging"])
@settings(max_examples=25, deadline=None)
@given(PATHS, PATHS, st.integers(4, 7), st.integers(0, 5))
def test_one_tier_is_a_cache_with_its_options(name, paths, earlier, size, ttl):
    """Expiry and a prewarmed start are those of the plain replay, which the runtime's pool proves."""
    workload = log(paths)
    policy = fitted.by_table(STUMP, 4) if name == "aging" else POLICIES.load(name)
    start = resident_in(workload, stored_of(log(earlier), 1))
    tiered = replay_tiers(workload, policy, [size], ttl=ttl, resident=start)
    assert tiered.served[:, 0].tolist() == replay(workload, policy, size, ttl, start).tolist()


@settings(max_examples=60, deadline=None)
@given(PATHS, PATHS, st.lists(st.integers(4, 9), min_size=1, max_size=4), st.integers(0, 9))
def test_expiry_and_a_prewarmed_start_hold_in_every_tier(paths, earlier, sizes, ttl):
    """Under LRU tiers are sections of one cache, whatever it begins with and however fast it forgets."""
    workload = log(paths)
    lru = POLICIES.load("lru")
    start = resident_in(workload, stored_of(log(earlier), 1))
    served = replay_tiers(workload, lru, sizes, ttl=ttl).served.sum(axis=0)
    whole = [replay(workload, lru, sum(sizes[: n + 1]), ttl).sum() for n in range(len(sizes))]
    assert np.cumsum(served).tolist() == whole
    room = [max(sizes[0], len(start.nodes)), *sizes[1:]]  # all of it is in the first tier, so orders agree
    served = replay_tiers(workload, lru, room, resident=start).served.sum(axis=0)
    whole = [replay(workload, lru, sum(room[: n + 1]), resident=start).sum() for n in range(len(room))]
    assert np.cumsum(served).tolist() == whole


def test_a_prewarmed_start_fills_one_tier_after_the_other():
    workload = log([[1, 1, 1, 1, 2]])
    start = resident_in(workload, stored_of(log([[1, 1, 1, 1, 2]]), 1))
    tiered = replay_tiers(workload, POLICIES.load("lru"), [2, 2, 9], resident=start)
    assert tiered.served.tolist() == [[2, 2, 1]]
