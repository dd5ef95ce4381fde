"""lfu-da: LFU with dynamic aging (Arlitt et al., 2000).

The key of the last evicted block is added to a block's count when it is touched, so that blocks that
were hot long ago fall behind those that are in use now.
"""

from kvtool.cache.policy import KEY_SIGNATURE, Policy
from kvtool.compiling import njit


@njit(KEY_SIGNATURE, cache=True)
def key(now, turn, count, stay, birth, previous, sharers, depth, age, parameters):  # type: ignore[no-untyped-def]
    """Cache age + touches since the block became resident."""
    return age + stay


POLICY = Policy("lfu-da", key)
