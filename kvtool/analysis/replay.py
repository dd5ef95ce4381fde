"""Replay a workload through the pool's compiled core: the runtime's own primitives under any policy.

One request at a time, as `Pool` does it: touch all blocks, match and pin the resident prefix, take
slots for the rest (evicting by the policy), publish, let go. A request longer than the cache keeps its
first blocks.
"""

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvtool.analysis.resident import Resident
from kvtool.analysis.workload import Workload
from kvtool.cache import core
from kvtool.cache.aging import conclude, observe
from kvtool.cache.core import NODES, STATE, commit, compiled, match, pin, take_slot, touch, unpin
from kvtool.cache.policy import KEY_TYPE, Policy
from kvtool.cache.pool import session_bit


def replay(
    workload: Workload,
    policy: Policy,
    capacity: int,
    ttl: float | None = None,
    resident: Resident | None = None,
) -> NDArray[np.int64]:
    """Matched blocks of each request, int64 [r], with a cache of `capacity` blocks under `policy`.

    ttl: seconds after its last touch from which a block is not served any more; its slot is refilled.
    resident: blocks that are there at the start.
    """
    matched = np.empty(workload.requests, np.int64)
    state = pool_state(workload, policy, capacity, resident)
    if policy.ages:
        replay_part(state, policy, workload, 0, workload.requests, matched)
        return matched
    replay_loop(
        state,
        policy.key,
        workload.nodes,
        workload.offsets,
        workload.clock,
        session_bits(workload),
        np.inf if ttl is None else ttl,
        matched,
    )
    return matched


def replay_part(
    state: core.State,
    policy: Policy,
    workload: Workload,
    first: int,
    last: int,
    matched: NDArray[np.int64],
) -> None:
    """Requests [first, last) under a policy that ages, on a cache that goes on from there."""
    _replay_aging(
        state,
        policy.key,
        workload.nodes,
        workload.offsets[first : last + 1],
        workload.clock[first:last],
        session_bits(workload)[first:last],
        workload.output_tokens[first:last],
        matched[first:last],
    )


def pool_state(
    workload: Workload, policy: Policy, capacity: int, resident: Resident | None = None
) -> core.State:
    """A cache that knows every block of the workload and holds those that are `resident`, or none."""
    if resident is not None:
        return resident.state(capacity, policy.parameter_array())
    state = core.new_state(workload.distinct_blocks, capacity, policy.parameter_array())
    return state._replace(parent=np.array(workload.parent), depth=np.array(workload.depth))


def session_bits(workload: Workload) -> NDArray[np.uint64]:
    """Each request's bit in the sharing sketch of the blocks it touches, as the runtime's, uint64 [r]."""
    bits = np.array([session_bit(name) for name in [*workload.session_names, None]], np.uint64)
    return bits[workload.session]


@compiled(types.int64(STATE, KEY_TYPE, NODES, types.float64, types.uint64, types.float64))
def serve_one(s: Any, key: Any, blocks: Any, now: Any, bit: Any, ttl: Any) -> Any:
    """One request from touch to release; returns the blocks it was served."""
    fresh = blocks.size
    if ttl < np.inf:
        fresh = 0
        while fresh < blocks.size and now - s.last[blocks[fresh]] <= ttl:
            fresh += 1
    touch(s, key, blocks, now, bit)
    hit = match(s, blocks)
    pin(s, blocks[:hit])
    held = hit
    while held < blocks.size:
        slot, _ = take_slot(s)
        if slot < 0:
            break
        commit(s, blocks[held], slot)
        held += 1
    unpin(s, blocks[:held])
    return min(hit, fresh)


@compiled(
    types.void(
        STATE,
        KEY_TYPE,
        NODES,
        types.int64[::1],
        types.float64[::1],
        types.uint64[::1],
        types.float64,
        types.int64[::1],
    ),
)
def replay_loop(
    s: Any, key: Any, nodes: Any, offsets: Any, clock: Any, bits: Any, ttl: Any, matched: Any
) -> None:
    for request in range(clock.size):
        blocks = nodes[offsets[request] : offsets[request + 1]]
        matched[request] = serve_one(s, key, blocks, clock[request], bits[request], ttl)


@compiled(
    types.void(
        STATE,
        KEY_TYPE,
        NODES,
        types.int64[::1],
        types.float64[::1],
        types.uint64[::1],
        types.int64[::1],
        types.int64[::1],
    ),
)
def _replay_aging(
    s: Any, key: Any, nodes: Any, offsets: Any, clock: Any, bits: Any, output_tokens: Any, matched: Any
) -> None:
    for request in range(clock.size):
        blocks = nodes[offsets[request] : offsets[request + 1]]
        observe(s, blocks, clock[request])
        matched[request] = serve_one(s, key, blocks, clock[request], bits[request], np.inf)
        conclude(s, blocks, output_tokens[request])
