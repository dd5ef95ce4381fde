"""fifo: its rank, equal to a plain simulation; one eviction order by hand."""

from hypothesis import given, settings
from hypothesis import strategies as st

PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=25)


def rank(cache, node):
    return cache.birth[node]


@settings(deadline=None, max_examples=50)
@given(PATHS, st.integers(1, 9))
def test_replays_as_the_plain_cache_does(agrees, paths, capacity):
    agrees("fifo", rank, paths, capacity)


def test_a_use_does_not_make_it_younger(agrees, plain, workload):
    """a is used again before c comes, and leaves first all the same; then b, then a's second stay begins."""
    paths = [("a",), ("b",), ("a",), ("c",), ("a",), ("d",)]
    assert plain(workload(paths), 2, rank)[1] == [0, 1, 2]
    agrees("fifo", rank, paths, 2)
