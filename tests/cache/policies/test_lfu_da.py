"""lfu-da: its rank, equal to a plain simulation; one eviction order by hand."""

from hypothesis import given, settings
from hypothesis import strategies as st

PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=25)


def rank(cache, node):
    return cache.age + cache.stay[node]


@settings(deadline=None, max_examples=50)
@given(PATHS, st.integers(1, 9))
def test_replays_as_the_plain_cache_does(agrees, paths, capacity):
    agrees("lfu-da", rank, paths, capacity)


def test_old_fame_fades(agrees, plain, workload):
    """a is used three times and never again; one-time blocks raise the age until a leaves."""
    paths = [("a",)] * 3 + [(symbol,) for symbol in "bcdefg"]
    evicted = plain(workload(paths), 2, rank)[1]
    assert evicted == [1, 2, 3, 4, 0], "with the age at two a newcomer ranks as a does, and a is older"
    agrees("lfu-da", rank, paths, 2)
