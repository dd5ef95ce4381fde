"""gdsf: greedy dual size frequency (Cherkasova, 1998) with the cost of a block's prefill.

All blocks have one size, so what remains is frequency times cost: the linear layers cost the same for
every block, attention grows with its depth.
"""

from kvtool.cache.policy import KEY_SIGNATURE, Policy
from kvtool.compiling import njit


@njit(KEY_SIGNATURE, cache=True)
def key(now, turn, count, stay, birth, previous, sharers, depth, age, parameters):  # type: ignore[no-untyped-def]
    """Cache age + touches since the block became resident x cost."""
    return age + stay * (1.0 + depth * parameters[0] / parameters[1])


POLICY = Policy("gdsf", key, (4.0 * 32 * 4096 * 512, 2 * 7e9))
"""parameters: FLOPs of a token's attention to one more block, FLOPs of its linear layers (a dense model
of 7 billion weights, 32 layers of width 4096, blocks of 512 tokens)."""
