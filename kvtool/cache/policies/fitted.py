"""fitted: reuse expectation learned from a log, and its decay; without a model it ranks as `cost` does."""

import math

from numba import njit

from kvtool.cache.policy import KEY_SIGNATURE, Policy


@njit(KEY_SIGNATURE, cache=True)
def key(now, turn, count, stay, previous, sharers, depth, age, parameters):  # type: ignore[no-untyped-def]
    """First form, without a model."""
    return turn / parameters[0] + 0.2 * math.log(count)


POLICY = Policy("fitted", key, (300.0,))
