"""The composite score of `cost`, which `fitted` also ranks by as long as it has no model.

A block's expected hits, from its uses and their decay, times what it costs to rebuild, times how many
sessions share it. Its logarithm is kept: an exponential decay then keeps the order between touches.
"""

import math

from kvtool.cache.policy import KEY_SIGNATURE
from kvtool.compiling import njit

WEIGHTS = ("tau", "frequency", "rebuild", "sharing", "growth")
DEFAULTS = (100.0, 0.2, 0.05, 0.2, 0.01917)
"""tau: requests in which the hit expectation falls by e. frequency, rebuild, sharing: exponents of uses, of
rebuild cost and of distinct sessions. growth: FLOPs that a block one deeper costs more to rebuild, as a
share of a first block's (a dense model of 7 billion weights, blocks of 512 tokens)."""


@njit(KEY_SIGNATURE, cache=True)
def key(now, turn, count, stay, birth, previous, sharers, depth, age, parameters):  # type: ignore[no-untyped-def]
    """Logarithm of the score, decay turned into a head start of the later touch."""
    tau, frequency, rebuild = parameters[0], parameters[1], parameters[2]
    sharing, growth = parameters[3], parameters[4]
    score = frequency * math.log(count) + rebuild * math.log1p(growth * depth)
    return turn / tau + score + sharing * math.log(max(sharers, 1.0))
