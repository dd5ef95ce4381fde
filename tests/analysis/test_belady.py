"""Belady against the best of all ways to evict, tried one by one on small logs."""

from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.analysis.belady import belady
from kvtool.analysis.build import build_workload
from kvtool.analysis.curve import LruCurve
from kvtool.requests import BlockIds, Request, Source


def workload_of(paths):
    names = {}
    return build_workload(
        [
            Request(
                id="",
                source=Source("t", row),
                block_ids=BlockIds(
                    np.array([names.setdefault(tuple(path[: i + 1]), len(names)) for i in range(len(path))]),
                    4,
                    4 * len(path),
                ),
            )
            for row, path in enumerate(paths)
        ],
        None,
        4,
    )


def best_of_all(workload, capacity):
    """Most block hits that any sequence of prefix-closed caches of `capacity` blocks can have."""
    paths = [
        tuple(workload.nodes[workload.offsets[i] : workload.offsets[i + 1]].tolist())
        for i in range(workload.requests)
    ]
    parent = workload.parent.tolist()

    @cache
    def from_here(request, held):
        if request == len(paths):
            return 0
        path = paths[request]
        hit = next((i for i, node in enumerate(path) if node not in held), len(path))
        return hit + max(from_here(request + 1, kept) for kept in kept_sets(held | set(path)))

    @cache
    def kept_sets(pool):
        """Maximal prefix-closed subsets of at most `capacity` blocks: taking one more never hurts."""
        done, frontier = set(), {frozenset()}
        while frontier:
            grown = set()
            for kept in frontier:
                nexts = [n for n in pool - kept if parent[n] < 0 or parent[n] in kept]
                if len(kept) == capacity or not nexts:
                    done.add(kept)
                else:
                    grown |= {kept | {n} for n in nexts}
            frontier = grown
        return done

    return from_here(0, frozenset())


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), max_size=7),
    st.integers(1, 4),
)
def test_no_way_to_evict_has_more_hits(paths, capacity):
    workload = workload_of(paths)
    assert belady(workload, capacity).sum() == best_of_all(workload, capacity)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=40), st.integers(1, 30))
def test_never_below_lru_and_everything_with_room_for_everything(paths, capacity):
    workload = workload_of(paths)
    assert belady(workload, capacity).sum() >= LruCurve(workload).at(capacity).hit_blocks
    everything = LruCurve(workload).at(workload.distinct_blocks).hit_blocks
    assert belady(workload, max(workload.distinct_blocks, 1)).sum() == everything


def test_a_block_that_is_used_no_more_makes_room_at_once():
    """One block fits: b and c pass through, a is kept for the end."""
    assert belady(workload_of([("a",), ("b",), ("c",), ("a",)]), 1).tolist() == [0, 0, 0, 1]
