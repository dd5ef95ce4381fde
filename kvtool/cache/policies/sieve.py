"""sieve: as fifo, but a block used since the hand last passed it is passed once more (Zhang, 2024).

The hand goes round the blocks in the order in which they came and evicts the first one that was not used
since it was there last. All that a use changes is in which round the hand will take the block, and that is
known when the block is used. So the key is `round * ROUND + place`, places rising from 1 with the births,
and `age`, the last evicted block's key, says where the hand is. Two things differ from the published queue:
blocks that cannot leave (held, or with children) are taken as soon as they can, and new blocks stand in the
queue before room is made for them, so that those which come at the very end of a round still belong to it.
"""

from kvtool.cache.policy import KEY_SIGNATURE, Policy
from kvtool.compiling import njit

ROUND = 2.0**32
"""More than there are turns."""


@njit(KEY_SIGNATURE, cache=True)
def key(now, turn, count, stay, birth, previous, sharers, depth, age, parameters):  # type: ignore[no-untyped-def]
    """Round and place in which the hand will find the block not used since."""
    rounds, place = age // ROUND, birth + 1.0
    if place <= age - rounds * ROUND:
        rounds += 1.0  # the hand has passed it in this round
    if stay > 1.0:
        rounds += 1.0  # used: it is passed once more
    return rounds * ROUND + place


POLICY = Policy("sieve", key)
