"""sieve: its rank, equal to a plain simulation; eviction orders by hand."""

from hypothesis import given, settings
from hypothesis import strategies as st

PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=25)


def rank(cache, node):
    """The round in which the hand comes by, as a pair: keys are compared, never computed with."""
    rounds, place = cache.age if cache.age else (0, 0)
    rounds += cache.birth[node] + 1 <= place
    return (rounds + (cache.stay[node] > 1), cache.birth[node] + 1)


@settings(deadline=None, max_examples=50)
@given(PATHS, st.integers(1, 9))
def test_replays_as_the_plain_cache_does(agrees, paths, capacity):
    agrees("sieve", rank, paths, capacity)


def test_the_hand_passes_what_was_used_once_and_goes_on_from_there(agrees, plain, workload):
    """a is passed for its use, b leaves; the hand is at c, which leaves next; then it comes back to a."""
    paths = [(symbol,) for symbol in "abcadef"]
    assert plain(workload(paths), 3, rank)[1] == [1, 2, 3]
    agrees("sieve", rank, paths, 3)


def test_many_uses_in_one_round_count_as_one(agrees, plain, workload):
    """a is used three times, b once: both are passed in the first round and leave in the second, a first."""
    paths = [(symbol,) for symbol in "abaaabcde"]
    assert plain(workload(paths), 3, rank)[1] == [2, 3]
    agrees("sieve", rank, paths, 3)


def test_a_prefix_is_used_with_what_follows_it_and_outlives_it(agrees, plain, workload):
    """The common block is used by every request; what stands below it leaves in order."""
    paths = [("s", "a"), ("s", "b"), ("s", "c"), ("s", "d")]
    assert plain(workload(paths), 3, rank)[1] == [1, 2]
    agrees("sieve", rank, paths, 3)
