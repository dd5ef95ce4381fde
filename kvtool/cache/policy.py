"""What a policy is: a key per block, recomputed when the block is touched; the smallest key leaves first.

Time is passed in, never read. Exponential decay needs no clock between touches: a score that decays
as exp(-age / tau) keeps its order if its logarithm plus last / tau is the key.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

KEY_SIGNATURE = types.float64(
    types.float64,  # now: seconds
    types.float64,  # turn: ordinal of the touching request, unique where times tie
    types.float64,  # count: touches so far, this one included, also those while it was not resident
    types.float64,  # stay: touches since it became resident, this one included
    types.float64,  # birth: turn of the touch that made it resident
    types.float64,  # previous: seconds of the touch before this one (now on the first)
    types.float64,  # sharers: estimate of distinct sessions that touched it
    types.float64,  # depth: 0 for the first block of a prompt
    types.float64,  # age: key of the last evicted block (the inflation term of LFU-DA and GDSF)
    types.float64[::1],  # parameters: the policy's own, in its documented order
)
"""A key function: compiled by numba with exactly this signature, so that one pool core calls any."""

KEY_TYPE = types.FunctionType(KEY_SIGNATURE)


@dataclass(frozen=True)
class Policy:
    """A ranking of evictable blocks. Ties: older turn first, then deeper, then lower node id."""

    name: str
    key: Any
    parameters: tuple[float, ...] = ()
    ages: bool = False
    """The parameters are a `ReuseTable`'s: ranks change with time, see aging. `key` then only bridges the
    time from a touch to the end of its request."""

    def parameter_array(self) -> NDArray[np.float64]:
        """Parameters as the key function takes them, float64 [p] (at least one element)."""
        return np.array(self.parameters or (0.0,), dtype=np.float64)
