"""Mattson's pass against an LRU cache that is simulated at every capacity."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtool.analysis.build import build_workload
from kvtool.analysis.curve import LruCurve, capacities
from kvtool.requests import BlockIds, Request, Source

LOGS = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(1, 4)), max_size=30
)


def workload_of(log):
    """Prompts in blocks of 4 tokens, the last block filled with `tail` tokens."""
    names, requests = {}, []
    for row, (path, tail) in enumerate(log):
        keys = [
            (tuple(path[: i + 1]), tail if i == len(path) - 1 and tail < 4 else 4) for i in range(len(path))
        ]
        ids = np.array([names.setdefault(key, len(names)) for key in keys], np.int64)
        tokens = (len(path) - 1) * 4 + tail
        requests.append(Request(id=str(row), source=Source("t", row), block_ids=BlockIds(ids, 4, tokens)))
    return build_workload(requests, None, 4)


def slow_lru(workload, capacity):
    """Matched blocks of each request: a list, most recent first, cut to `capacity` after each request."""
    stack, matched = [], []
    for request in range(workload.requests):
        path = workload.nodes[workload.offsets[request] : workload.offsets[request + 1]].tolist()
        known = next((i for i, node in enumerate(path) if node not in stack), len(path))
        matched.append(known)
        stack = (path + [node for node in stack if node not in path])[:capacity]
    return np.array(matched, np.int64)


@given(LOGS)
def test_every_capacity_equals_a_simulated_lru(log):
    workload = workload_of(log)
    curve = LruCurve(workload)
    length, tokens = workload.lengths, workload.prompt_tokens
    for capacity in range(workload.distinct_blocks + 2):
        matched = slow_lru(workload, capacity)
        rates = curve.at(capacity)
        assert rates.hit_blocks == matched.sum()
        total = max(tokens.sum(), 1)
        assert rates.tokens == pytest.approx((np.minimum(matched, (tokens - 1) // 4) * 4).sum() / total)
        assert rates.tokens_full == pytest.approx((np.minimum(matched, tokens // 4) * 4).sum() / total)
        assert rates.tokens_uncapped == pytest.approx(np.minimum(matched * 4, tokens).sum() / total)
        assert rates.request_mean == pytest.approx((matched / length).mean() if len(length) else 0)


def test_a_stack_of_many_groups_equals_a_simulated_lru():
    """Long prompts that come back whole or in part: positions of many groups, closed up many times."""
    random = np.random.default_rng(7)
    paths = [random.integers(0, 2, random.integers(1, 150)).tolist() for _ in range(12)]
    log = []
    for _ in range(150):
        path = paths[random.integers(12)]
        log.append((path[: random.integers(1, len(path) + 1)], 4))
    workload = workload_of(log)
    assert workload.distinct_blocks > 500
    curve = LruCurve(workload)
    for capacity in (1, 63, 64, 65, 200, 450, workload.distinct_blocks - 1, workload.distinct_blocks):
        assert curve.at(capacity).hit_blocks == slow_lru(workload, capacity).sum()


@given(LOGS)
def test_capacity_for_is_the_least_that_reaches_the_share(log):
    curve = LruCurve(workload_of(log))
    best = curve.at(10**9).tokens
    for share in (0.5, 0.9, 1.0):
        least = curve.capacity_for(share)
        assert curve.at(least).tokens >= share * best - 1e-12
        assert least == 0 or curve.at(least - 1).tokens < share * best


def test_reported_capacities_are_distinct_and_end_with_everything():
    workload = workload_of([([i % 3, i % 5, i % 7], 4) for i in range(20)])
    assert capacities(workload)[-1] == workload.distinct_blocks
    assert capacities(workload) == sorted(set(capacities(workload)))
