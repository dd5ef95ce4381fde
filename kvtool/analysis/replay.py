"""Replay a workload through the pool's compiled core: the runtime's own primitives under any policy.

One request at a time, as `Pool` does it: touch all blocks, match and pin the resident prefix, take
slots for the rest (evicting by the policy), publish, let go. A request longer than the cache keeps its
first blocks.
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvtool.analysis.resident import Resident
from kvtool.analysis.workload import Workload
from kvtool.cache import core
from kvtool.cache.aging import conclude, observe, reclassify
from kvtool.cache.core import NODES, STATE, commit, compiled, match, pin, take_slot, touch, unpin
from kvtool.cache.policy import KEY_TYPE, Policy
from kvtool.cache.pool import session_bit

Schedule = Sequence[tuple[int, Policy]]
"""(request, policy): who ranks from that request on; the first entry is for request 0. Later ones are the
same policy under a model that has learned more."""


def replay(
    workload: Workload,
    policy: Policy | Schedule,
    capacity: int,
    ttl: float | None = None,
    resident: Resident | None = None,
    admit: int = 1,
    bits: NDArray[np.uint64] | None = None,
) -> NDArray[np.int64]:
    """Matched blocks of each request, int64 [r], with a cache of `capacity` blocks under `policy`.

    ttl: seconds after its last touch from which a block is not served any more; its slot is refilled.
    resident: blocks that are there at the start. admit: a block is kept from its admit-th request on; as
    no block is asked for more often than its parent, what is kept stays whole prefixes. bits: see
    `session_bits`.
    """
    matched = np.empty(workload.requests, np.int64)
    bits = session_bits(workload) if bits is None else bits
    for first, last, stage, state in staged(policy, workload, capacity, resident):
        replay_loop(
            state,
            stage.key,
            stage.ages,
            workload.nodes,
            workload.offsets[first : last + 1],
            workload.clock[first:last],
            bits[first:last],
            workload.output_tokens[first:last],
            np.inf if ttl is None else ttl,
            admit,
            matched[first:last],
        )
    return matched


def stages(policy: Policy | Schedule, workload: Workload) -> Iterator[tuple[int, int, Policy]]:
    """(first, last, policy) of each part of the log that one policy ranks."""
    schedule = [(0, policy)] if isinstance(policy, Policy) else policy
    starts = [first for first, _ in schedule]
    for (first, stage), last in zip(schedule, [*starts[1:], workload.requests], strict=True):
        yield first, last, stage


def staged(
    policy: Policy | Schedule, workload: Workload, capacity: int, resident: Resident | None
) -> Iterator[tuple[int, int, Policy, core.State]]:
    """`stages` with the cache that goes through all of them, ranked anew at each."""
    state = None
    for first, last, stage in stages(policy, workload):
        if state is None:
            state = pool_state(workload, stage, capacity, resident)
        else:
            state = _retuned(state, stage, float(workload.clock[first]))
        yield first, last, stage, state


def _retuned(state: core.State, policy: Policy, now: float) -> core.State:
    """The same cache, ranked by a policy whose model was fitted anew at `now`."""
    state = state._replace(parameters=policy.parameter_array())
    reclassify(state, now)
    return state


def pool_state(
    workload: Workload, policy: Policy, capacity: int, resident: Resident | None = None
) -> core.State:
    """A cache that knows every block of the workload and holds those that are `resident`, or none."""
    if resident is not None:
        return resident.state(capacity, policy.parameter_array())
    state = core.new_state(workload.distinct_blocks, capacity, policy.parameter_array())
    return state._replace(parent=np.array(workload.parent), depth=np.array(workload.depth))


def session_bits(workload: Workload, priorities: Sequence[tuple[str, int]] = ()) -> NDArray[np.uint64]:
    """Each request's bits in the sharing sketch of the blocks it touches, as the runtime's, uint64 [r].

    priorities: (glob, priority): a session whose name fits counts as that many; the last one that fits holds.
    """
    weight = {
        name: next((many for glob, many in reversed(priorities) if fnmatchcase(name, glob)), 1)
        for name in workload.session_names
    }
    bits = [session_bit(name, weight[name]) for name in workload.session_names]
    return np.array([*bits, session_bit(None)], np.uint64)[workload.session]


LOOP = (types.int64[::1], types.float64[::1], types.uint64[::1], types.int64[::1])
"""Types of a log's offsets, clock, session bits and output tokens."""


@compiled(
    types.int64(
        *(STATE, KEY_TYPE, types.boolean, NODES),
        *(types.float64, types.uint64, types.int64, types.float64, types.int64),
    )
)
def serve_one(
    s: Any, key: Any, ages: Any, blocks: Any, now: Any, bit: Any, output: Any, ttl: Any, admit: Any
) -> Any:
    """One request from touch to release; returns the blocks it was served."""
    fresh = blocks.size
    if ttl < np.inf:
        fresh = 0
        while fresh < blocks.size and now - s.last[blocks[fresh]] <= ttl:
            fresh += 1
    if ages:
        observe(s, blocks, now)
    touch(s, key, blocks, now, bit)
    hit = match(s, blocks)
    pin(s, blocks[:hit])
    held = hit
    while held < blocks.size and s.touches[blocks[held]] >= admit:
        slot, _ = take_slot(s)
        if slot < 0:
            break
        commit(s, blocks[held], slot)
        held += 1
    unpin(s, blocks[:held])
    if ages:
        conclude(s, blocks, output)
    return min(hit, fresh)


@compiled(
    types.void(
        *(STATE, KEY_TYPE, types.boolean, NODES, *LOOP), *(types.float64, types.int64, types.int64[::1])
    )
)
def replay_loop(
    s: Any,
    key: Any,
    ages: Any,
    nodes: Any,
    offsets: Any,
    clock: Any,
    bits: Any,
    outputs: Any,
    ttl: Any,
    admit: Any,
    matched: Any,
) -> None:
    for request in range(clock.size):
        blocks = nodes[offsets[request] : offsets[request + 1]]
        matched[request] = serve_one(
            s, key, ages, blocks, clock[request], bits[request], outputs[request], ttl, admit
        )
