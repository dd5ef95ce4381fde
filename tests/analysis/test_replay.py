"""Replay through the pool's core: LRU equals Mattson, TTL expires, rates follow their definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.analysis.build import build_workload
from kvtool.analysis.curve import LruCurve
from kvtool.analysis.flops import TYPICAL, Prefill
from kvtool.analysis.rates import rates_of
from kvtool.analysis.replay import pool_state, replay, session_bits
from kvtool.cache.policies import POLICIES
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


def test_the_runtime_and_the_simulator_share_session_bits_and_memory_stays_small():
    workload = workload_of([("a",), ("a",), ("b",)], sessions=["s", None, "t"])
    assert session_bits(workload).tolist() == [session_bit("s"), 0, session_bit("t")]
    state = pool_state(workload, LRU, 2)
    per_node = sum(array.itemsize for array in state if len(array) == workload.distinct_blocks)
    assert 0 < per_node < 200
    assert state.parent is not workload.parent
