"""lru: its rank, equal to a plain simulation; one eviction order by hand."""

from hypothesis import given, settings
from hypothesis import strategies as st

PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=25)


def rank(cache, node):
    return cache.turn[node]


@settings(deadline=None, max_examples=50)
@given(PATHS, st.integers(1, 9))
def test_replays_as_the_plain_cache_does(agrees, paths, capacity):
    agrees("lru", rank, paths, capacity)


def test_the_oldest_leaf_leaves_first(agrees, plain, workload):
    """a-b, c, d fill four blocks; e evicts b (oldest, and deeper than a), then f evicts a."""
    log = workload([("a", "b"), ("c",), ("d",), ("e",), ("f",)])
    assert plain(log, 4, rank)[1] == [1, 0]
    agrees("lru", rank, [("a", "b"), ("c",), ("d",), ("e",), ("f",)], 4)
