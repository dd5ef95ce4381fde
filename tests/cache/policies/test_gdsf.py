"""gdsf: its rank, equal to a plain simulation; one eviction order by hand."""

from hypothesis import given, settings
from hypothesis import strategies as st

PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=25)


def rank(cache, node):
    return cache.age + cache.stay[node] * (1 + cache.depth[node] * (4.0 * 32 * 4096 * 512) / 14e9)


@settings(deadline=None, max_examples=50)
@given(PATHS, st.integers(1, 9))
def test_replays_as_the_plain_cache_does(agrees, paths, capacity):
    agrees("gdsf", rank, paths, capacity)


def test_a_deep_block_outlives_a_shallow_one(agrees, plain, workload):
    """Both are used once; b stands deeper and costs more to rebuild, so c leaves although it is younger."""
    paths = [("a", "b"), ("c",), ("d",)]
    assert plain(workload(paths), 3, rank)[1] == [2]
    agrees("gdsf", rank, paths, 3)
