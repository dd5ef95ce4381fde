"""fitted: the block with the least expected hits per second leaves first, by a model fitted from a log.

Without a model it ranks as `cost` does. With one, see reuse_table and aging: a block's class is known when
the request that used it ends, and its worth changes while it waits.
"""

import math

from kvtool.cache.composite import DEFAULTS
from kvtool.cache.composite import key as composite
from kvtool.cache.policy import KEY_SIGNATURE, Policy
from kvtool.cache.reuse_table import ReuseTable
from kvtool.compiling import njit

POLICY = Policy("fitted", composite, DEFAULTS)


@njit(KEY_SIGNATURE, cache=True)
def in_use(now, turn, count, stay, birth, previous, sharers, depth, age, parameters):  # type: ignore[no-untyped-def]
    """Nothing is worth more than a block that a request is using."""
    return math.inf


def by_table(
    table: ReuseTable | None, block_size: int, partial_ends: bool = False, rebuild: float = 0.0
) -> Policy:
    """The policy under a fitted table (None: the fallback), for a pool of this block size.

    partial_ends: prompts' last, partial blocks take slots, as in traces of ready-made block ids.
    rebuild: FLOPs that a block one deeper costs more to rebuild, as a share of a first block's.
    """
    if table is None:
        return POLICY
    parameters = table.parameters(block_size, partial_ends, rebuild)
    return Policy("fitted", in_use, tuple(parameters.tolist()), ages=True)
