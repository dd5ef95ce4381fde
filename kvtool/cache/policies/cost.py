"""cost: the composite of hit expectation, rebuild cost and sharing; what is cheapest to lose leaves first.

score = count * exp(-(now - last) / tau) * (1 + flops * depth)^rebuild * sharers^sharing, and its
logarithm plus last / tau is the key, because the decay keeps the order between touches.
"""

import math

from numba import njit

from kvtool.cache.policy import KEY_SIGNATURE, Policy


@njit(KEY_SIGNATURE, cache=True)
def key(now, turn, count, stay, previous, sharers, depth, age, parameters):  # type: ignore[no-untyped-def]
    """Parameters: tau in turns, frequency, rebuild, sharing exponents."""
    tau, frequency, rebuild, sharing = parameters[0], parameters[1], parameters[2], parameters[3]
    score = frequency * math.log(count) + sharing * math.log(max(sharers, 1.0))
    return turn / tau + score + rebuild * math.log1p(0.01917 * depth)


POLICY = Policy("cost", key, (300.0, 0.2, 0.1, 0.2))
