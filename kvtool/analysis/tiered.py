"""Replay over tiers, fastest first: what each serves, what is written to it, and how long loads take.

A block that leaves a tier goes to the next one that can take it, and comes back to the first when it is
used. Then it leaves the lower tier (the capacities add up), or stays in some of them too, as in the runtime's
`TieredPool`, whose order of touches, pins and moves this is. A prompt longer than the first tier keeps its
first blocks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numba import typeof, types
from numpy.typing import NDArray

from kvtool.analysis.replay import LOOP, Schedule, pool_state, session_bits, stages
from kvtool.analysis.resident import Resident
from kvtool.analysis.workload import Workload
from kvtool.cache.aging import conclude, observe, pass_time, reclassify
from kvtool.cache.core import (
    NODES,
    STATE,
    TURN,
    State,
    commit,
    compiled,
    free_slot,
    match,
    new_state,
    offer_again,
    pin,
    rank,
    remove,
    take_slot,
    touch,
    unpin,
)
from kvtool.cache.policy import KEY_TYPE, Policy
from kvtool.cache.pool import STATISTICS


@dataclass(frozen=True)
class Tiered:
    """served: blocks each request found in each tier, int64 [r, t]; written: blocks put into each tier by
    each request, int64 [r, t]: computed or loaded into the first, pushed down into another."""

    served: NDArray[np.int64]
    written: NDArray[np.int64]


def replay_tiers(
    workload: Workload,
    policy: Policy | Schedule,
    capacities: Sequence[int],
    keeps: Sequence[bool] = (),
    admit: int = 1,
    bits: NDArray[np.uint64] | None = None,
    ttl: float | None = None,
    resident: Resident | None = None,
) -> Tiered:
    """Replay with tiers of `capacities` blocks.

    keeps: by tier whether it keeps what comes up, in the runtime's order; () if none does. admit: a lower
    tier takes blocks asked for that often. ttl: as of `replay`, in every tier. resident: blocks that are
    there at the start, the most useful in the fastest tier.
    """
    served = np.zeros((workload.requests, len(capacities)), np.int64)
    written = np.zeros_like(served)
    bits = session_bits(workload) if bits is None else bits
    sizes = np.array(capacities, np.int64)
    bank = None
    for first, last, stage in stages(policy, workload):
        if bank is None:
            bank = _stack(list(_begin(workload, stage, capacities, resident)))
        else:
            bank = bank._replace(parameters=stage.parameter_array())
            for tier in range(len(capacities)):
                reclassify(_tier_of(bank, tier, capacities[tier]), float(workload.clock[first]))
        _replay(
            bank,
            stage.key,
            stage.ages,
            workload.nodes,
            workload.offsets[first : last + 1],
            workload.clock[first:last],
            bits[first:last],
            workload.output_tokens[first:last],
            sizes,
            np.array(keeps, np.bool_),
            admit,
            np.inf if ttl is None else ttl,
            served[first:last],
            written[first:last],
        )
    return Tiered(served, written)


def _begin(
    workload: Workload, policy: Policy, capacities: Sequence[int], resident: Resident | None
) -> Iterator[State]:
    """Each tier's state before the first request."""
    first = 0
    for size in capacities:
        own = None if resident is None else replace(resident, nodes=resident.nodes[first:])
        yield pool_state(workload, policy, size, own)
        first += size


SHARED = (*STATISTICS, "parameters")
"""Fields that all tiers share."""


def _stack(states: list[State]) -> State:
    """A State whose own arrays have one row per tier, as long as the largest; the others are shared."""
    rows: dict[str, Any] = {}
    for name in State._fields:
        arrays = [getattr(state, name) for state in states]
        if name in SHARED:
            rows[name] = arrays[0]
            continue
        rows[name] = np.zeros((len(arrays), max(map(len, arrays))), arrays[0].dtype)
        for row, array in zip(rows[name], arrays, strict=True):
            row[: len(array)] = array
    return State(**rows)


def _tier_of(bank: State, tier: int, size: int) -> State:
    rows = {
        name: array
        if name in SHARED
        else array[tier, :size]
        if name in ("owner", "heap", "free")
        else array[tier]
        for name, array in bank._asdict().items()
    }
    return State(**rows)


BANK = typeof(_stack([new_state(1, 1, np.zeros(1))]))


@compiled(STATE(BANK, types.int64, types.int64))
def _tier(bank: Any, tier: Any, size: Any) -> Any:
    return State(
        bank.parent,
        bank.depth,
        bank.touches,
        bank.last,
        bank.turn,
        bank.sharers,
        bank.stay[tier],
        bank.birth[tier],
        bank.slot[tier],
        bank.pins[tier],
        bank.kids[tier],
        bank.place[tier],
        bank.key[tier],
        bank.owner[tier, :size],
        bank.heap[tier, :size],
        bank.free[tier, :size],
        bank.control[tier],
        bank.age[tier],
        bank.parameters,
        bank.traits,
    )


@compiled(types.void(BANK, types.int32, types.int64[::1], types.int64, types.int64[::1], NODES))
def _push_down(bank: Any, node: Any, sizes: Any, admit: Any, written: Any, one: Any) -> None:
    """`node` has just left the first tier. Each tier that takes one may push another one further down."""
    tier = 0
    while admit == 1 or bank.touches[node] >= admit:  # a prewarmed block may leave unused
        tier += 1
        while tier < sizes.size:
            below = _tier(bank, tier, sizes[tier])
            if below.slot[node] >= 0:
                return  # a copy stayed behind
            slot, victim = take_slot(below)
            if slot >= 0:
                break
            tier += 1  # all of it is held
        if tier == sizes.size:
            return
        below = _tier(bank, tier, sizes[tier])
        one[0] = node
        commit(below, node, slot)
        unpin(below, one)
        written[tier] += 1
        if victim < 0:
            return
        node = victim


@compiled(
    types.void(
        *(BANK, KEY_TYPE, types.boolean, NODES, *LOOP, types.int64[::1]),
        *(types.boolean[::1], types.int64, types.float64, types.int64[:, ::1], types.int64[:, ::1]),
        *(NODES, NODES),
    )
)
def _replay_all(
    bank: Any,
    key: Any,
    ages: Any,
    nodes: Any,
    offsets: Any,
    clock: Any,
    bits: Any,
    outputs: Any,
    sizes: Any,
    keeps: Any,
    admit: Any,
    ttl: Any,
    served: Any,
    written: Any,
    gone: Any,
    one: Any,
) -> None:
    """gone: room for the blocks that one request pushes out of the first tier; one: for a single node."""
    top = _tier(bank, 0, sizes[0])
    for request in range(clock.size):
        blocks = nodes[offsets[request] : offsets[request + 1]]
        now, bit = clock[request], bits[request]
        turn = float(top.control[TURN])
        fresh = blocks.size
        if ttl < np.inf:
            fresh = 0
            while fresh < blocks.size and now - top.last[blocks[fresh]] <= ttl:
                fresh += 1
        if ages:
            observe(top, blocks, now)
        for tier in range(1, sizes.size):
            below = _tier(bank, tier, sizes[tier])
            if ages:
                pass_time(below, blocks.size, now)
            rank(below, key, blocks, now, turn, bit)
        touch(top, key, blocks, now, bit)
        for tier in range(1, sizes.size):
            offer_again(_tier(bank, tier, sizes[tier]), blocks)
        hit = match(top, blocks)
        served[request, 0] = min(hit, fresh)
        pin(top, blocks[:hit])
        held, left = hit, 0
        while held < blocks.size:
            slot, victim = take_slot(top)
            if slot < 0:
                break
            commit(top, blocks[held], slot)
            if victim >= 0:
                gone[left] = victim
                left += 1
            held += 1
        written[request, 0] = held - min(hit, fresh)
        found = hit
        while found < blocks.size:
            source = 1
            while source < sizes.size and bank.slot[source, blocks[found]] < 0:
                source += 1
            if source == sizes.size:
                break
            served[request, source] += found < fresh
            below = _tier(bank, source, sizes[source])
            if keeps.size:
                pin(below, blocks[found : found + 1])
            elif found < held:
                free_slot(below, remove(below, blocks[found]))
            found += 1
        for i in range(left):
            _push_down(bank, gone[i], sizes, admit, written[request], one)
        for i in range(hit, found if keeps.size else hit):
            source = 1
            while bank.pins[source, blocks[i]] == 0:
                source += 1
            below = _tier(bank, source, sizes[source])
            unpin(below, blocks[i : i + 1])
            if i < held and not keeps[source]:
                free_slot(below, remove(below, blocks[i]))
        unpin(top, blocks[:held])
        if ages:
            for tier in range(sizes.size):
                conclude(_tier(bank, tier, sizes[tier]), blocks, outputs[request])


def _replay(bank: State, *rest: Any) -> None:
    offsets = rest[3]
    longest = int(np.diff(offsets).max(initial=0))
    _replay_all(bank, *rest, np.empty(longest, np.int32), np.empty(1, np.int32))
