"""lfu: its rank, equal to a plain simulation; golden hits; one eviction order by hand."""

from hypothesis import given, settings
from hypothesis import strategies as st

PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=25)


def rank(cache, node):
    return cache.stay[node]


@settings(deadline=None, max_examples=50)
@given(PATHS, st.integers(1, 9))
def test_replays_as_the_plain_cache_does(agrees, paths, capacity):
    agrees("lfu", rank, paths, capacity)


def test_golden_hits(hits, plain, sample):
    assert [hits("lfu", share) for share in (0.15, 0.3, 0.5)] == [585, 923, 1609]
    matched, _ = plain(sample, round(0.15 * sample.distinct_blocks), rank)
    assert sum(matched) == 585


def test_the_least_used_leaf_leaves_first(agrees, plain, workload):
    """a is used twice: c, then d leave before it, although a is older."""
    paths = [("a",), ("a",), ("c",), ("d",), ("e",)]
    assert plain(workload(paths), 2, rank)[1] == [1, 2]
    agrees("lfu", rank, paths, 2)
