"""Replay through the pool's core: LRU equals Mattson, TTL and admission, rates follow their definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.analysis.build import build_workload
from kvtool.analysis.curve import LruCurve
from kvtool.analysis.flops import TYPICAL, Prefill
from kvtool.analysis.rates import rates_of
from kvtool.analysis.replay import pool_state, replay, session_bits
from kvtool.analysis.routing import RoutingConfig, replay_replicas
from kvtool.analysis.timed import TimedConfig, replay_timed
from kvtool.analysis.waits import STUMP
from kvtool.cache.policies import POLICIES, fitted
from kvtool.cache.pool import session_bit
from kvtool.requests import BlockIds, Request, Source

LRU = POLICIES.load("lru")


def workload_of(paths, every=1.0, tail=4, sessions=None):
    names = {}
    return build_workload(
        [
            Request(
                id="",
                source=Source("t", row),
                arrival=int(row * every * 1e6),
                session=sessions[row] if sessions else None,
                block_ids=BlockIds(
                    np.array([names.setdefault(tuple(path[: i + 1]), len(names)) for i in range(len(path))]),
                    4,
                    4 * len(path) - 4 + tail,
                ),
            )
            for row, path in enumerate(paths)
        ],
        None,
        4,
    )


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=30),
    st.integers(1, 20),
    st.integers(1, 4),
)
def test_lru_equals_the_curve_in_every_rate(paths, capacity, tail):
    workload = workload_of(paths, tail=tail)
    replayed = rates_of(workload, replay(workload, LRU, capacity), TYPICAL)
    at = LruCurve(workload).at(capacity)
    for name in ("tokens", "tokens_full", "tokens_uncapped", "blocks", "request_mean", "rebuild_flops_saved"):
        assert getattr(replayed, name) == pytest.approx(getattr(at, name)), name
    assert replayed.hit_blocks == at.hit_blocks


def test_rates_by_hand():
    """Two equal prompts of two blocks, the second filled by half."""
    workload = workload_of([("a", "b"), ("a", "b")], tail=2)
    rates = rates_of(workload, np.array([0, 2]), Prefill(linear=1.0, attention=2.0))
    assert (rates.tokens, rates.tokens_full, rates.tokens_uncapped) == (4 / 12, 4 / 12, 6 / 12)
    assert (rates.blocks, rates.request_mean, rates.hit_blocks) == (0.5, 0.5, 2)
    assert rates.rebuild_flops_saved == (4 + 2 * 6) / (2 * (6 + 2 * 15)), (
        "0+1+2+3 and 0+...+5 attended tokens"
    )
    tail = rates_of(workload, np.array([0, 2]), TYPICAL, slice(1, None))
    assert (tail.tokens, tail.blocks, tail.request_mean) == (4 / 6, 1.0, 1.0)


def test_blocks_expire_and_are_renewed():
    workload = workload_of([("a", "b"), ("a", "b"), ("a", "c"), ("a", "b")], every=10)
    assert replay(workload, LRU, 9).tolist() == [0, 2, 1, 2]
    assert replay(workload, LRU, 9, ttl=10).tolist() == [0, 2, 1, 1], "b was last used 20 seconds ago"
    assert replay(workload, LRU, 9, ttl=5).tolist() == [0, 0, 0, 0]


class PlainLRU:
    """Recency as a list, latest first; blocks that may be served and kept by the letter of `replay`."""

    def __init__(self, capacity, ttl, admit):
        self.capacity, self.ttl, self.admit = capacity, ttl, admit
        self.kept, self.last, self.uses = [], {}, {}

    def serve(self, path, now):
        fresh = [node in self.last and now - self.last[node] <= self.ttl for node in path]
        here = [node in self.kept for node in path]
        for node in path:
            self.uses[node] = self.uses.get(node, 0) + 1
            self.last[node] = now
        wanted = [
            node for node, there in zip(path, here, strict=True) if there or self.uses[node] >= self.admit
        ]
        self.kept = wanted + [node for node in self.kept if node not in wanted]
        del self.kept[self.capacity :]
        return next((i for i in range(len(path)) if not (fresh[i] and here[i])), len(path))


LOGS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), max_size=30)


@settings(deadline=None)
@given(
    LOGS, st.integers(0, 12), st.sampled_from([1.0, 3.0, 99.0]), st.integers(1, 3), st.sampled_from([0, 1, 2])
)
def test_ttl_and_admission_equal_a_plain_list(paths, capacity, ttl, admit, every):
    """Also with ties in time, no room at all, and prompts longer than the cache; and in one replica."""
    workload = workload_of(paths, every=every)
    plain = PlainLRU(capacity, ttl, admit)
    expected = [
        plain.serve(workload.nodes[workload.offsets[i] : workload.offsets[i + 1]].tolist(), now)
        for i, now in enumerate(workload.clock.tolist())
    ]
    assert replay(workload, LRU, capacity, ttl, admit=admit).tolist() == expected
    routed = replay_replicas(workload, LRU, capacity, RoutingConfig(1, ttl=ttl, admit=admit))
    assert routed.matched.tolist() == expected


@settings(deadline=None)
@given(LOGS, st.sampled_from([1.0, 3.0]), st.integers(1, 3))
def test_in_time_what_is_not_admitted_passes_and_what_is_old_is_not_served(paths, ttl, admit):
    """With room for all and no overlap, replay in time is the plain one."""
    workload = workload_of(paths)
    timed = replay_timed(workload, LRU, 99, TimedConfig(ttl=ttl, admit=admit))
    assert timed.matched.tolist() == replay(workload, LRU, 99, ttl, admit=admit).tolist()


@settings(deadline=None, max_examples=40)
@given(LOGS, st.integers(1, 12), st.lists(st.integers(1, 29), max_size=3, unique=True))
def test_models_that_change_on_the_way_do_so_in_replicas_and_in_time(paths, capacity, changes):
    workload = workload_of(paths)
    policy = fitted.by_table(STUMP, 4)
    changes = sorted(at for at in changes if at < workload.requests)
    schedule = [(0, policy), *((at, policy) for at in changes)]
    matched = replay(workload, schedule, capacity).tolist()
    assert replay_replicas(workload, schedule, capacity, RoutingConfig(1)).matched.tolist() == matched
    assert replay_timed(workload, schedule, capacity, TimedConfig()).matched.tolist() == matched


def test_a_sessions_priority_is_how_many_it_counts_for():
    workload = workload_of([("a",), ("b",), ("c",)], sessions=["vip-1", "x", None])
    bits = session_bits(workload, [("*", 1), ("vip-*", 3)])
    assert [int(one).bit_count() for one in bits] == [3, 1, 0]
    assert bits[0] == session_bit("vip-1", 3) and bits[0] & session_bit("vip-1") == session_bit("vip-1")
    # three blocks in two slots: the oldest leaves, unless its session counts for more
    log = workload_of([("a",), ("b",), ("c",), ("a",)], sessions=["vip-1", "x", "y", "z"])
    cost = POLICIES.load("cost")
    assert replay(log, cost, 2).tolist() == [0, 0, 0, 0]
    assert replay(log, cost, 2, bits=session_bits(log, [("vip-*", 3)])).tolist() == [0, 0, 0, 1]


def test_the_runtime_and_the_simulator_share_session_bits_and_memory_stays_small():
    workload = workload_of([("a",), ("a",), ("b",)], sessions=["s", None, "t"])
    assert session_bits(workload).tolist() == [session_bit("s"), 0, session_bit("t")]
    state = pool_state(workload, LRU, 2)
    per_node = sum(array.itemsize for array in state if len(array) == workload.distinct_blocks)
    assert 0 < per_node < 200
    assert state.parent is not workload.parent
