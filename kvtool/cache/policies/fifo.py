"""fifo: the block that came longest ago leaves first, however often it was used since."""

from kvtool.cache.policy import KEY_SIGNATURE, Policy
from kvtool.compiling import njit


@njit(KEY_SIGNATURE, cache=True)
def key(now, turn, count, stay, birth, previous, sharers, depth, age, parameters):  # type: ignore[no-untyped-def]
    """The turn in which the block became resident."""
    return birth


POLICY = Policy("fifo", key)
