"""lfu: the block with the fewest touches since it came leaves first; ties go by recency."""

from kvtool.cache.policy import KEY_SIGNATURE, Policy
from kvtool.compiling import njit


@njit(KEY_SIGNATURE, cache=True)
def key(now, turn, count, stay, birth, previous, sharers, depth, age, parameters):  # type: ignore[no-untyped-def]
    """Touches since the block became resident."""
    return stay


POLICY = Policy("lfu", key)
