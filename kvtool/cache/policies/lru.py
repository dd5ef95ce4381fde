"""lru: the block touched longest ago leaves first.

Turns, not seconds: requests that arrive in the same instant still have an order. With leaf-only
eviction this is vLLM's free queue, where a request's blocks are returned tail first.
"""

from kvtool.cache.policy import KEY_SIGNATURE, Policy
from kvtool.compiling import njit


@njit(KEY_SIGNATURE, cache=True)
def key(now, turn, count, stay, birth, previous, sharers, depth, age, parameters):  # type: ignore[no-untyped-def]
    """The turn of the last touch."""
    return turn


POLICY = Policy("lru", key)
