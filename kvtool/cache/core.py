"""The pool's compiled core: residency, pins and an indexed eviction heap over dense node ids.

Every function here works on a `State` of arrays and is called both by the simulator's compiled loop
and, one request at a time, by the runtime's `Pool`. A block is evictable when it is resident, not
pinned, and has no resident child in this tier; exactly those blocks are in the heap.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba import typeof, types
from numpy.typing import NDArray

from kvtool.cache.policy import KEY_TYPE
from kvtool.compiling import njit

HEAP, FREE, TURN, HELD, TOUCHED = 0, 1, 2, 3, 4
"""Fields of `State.control`: blocks in the heap, slots on the free stack, requests seen, slots that are
private or pinned, blocks touched since ranks were renewed (see aging). Leases pin whole prefixes, so all
slots but the held ones can be had."""

NO_NODE, PRIVATE = -1, -2
"""Values of `State.owner`: a free slot, a slot that is leased and holds no identified block yet."""


class State(NamedTuple):
    """All that a pool knows. n nodes (every block identity seen), c slots.

    parent, depth, touches, last, turn, sharers describe a node whether or not it is resident and may
    be shared by the pools of several tiers; the rest belongs to one tier.
    """

    parent: NDArray[np.int32]  # [n] -1 for a first block
    depth: NDArray[np.int32]  # [n] 0 for a first block
    touches: NDArray[np.float64]  # [n] uses so far
    last: NDArray[np.float64]  # [n] seconds of the last touch
    turn: NDArray[np.int64]  # [n] ordinal of the request that touched it last
    sharers: NDArray[np.uint64]  # [n] one bit per session, hashed: see sharer_estimate
    stay: NDArray[np.float64]  # [n] uses since it became resident
    birth: NDArray[np.float64]  # [n] turn of the use that made it resident
    slot: NDArray[np.int32]  # [n] -1 when not resident
    pins: NDArray[np.int32]  # [n] leases that hold it
    kids: NDArray[np.int32]  # [n] resident children
    place: NDArray[np.int32]  # [n] position in the heap, -1 when not evictable
    key: NDArray[np.float64]  # [n] the policy's
    owner: NDArray[np.int32]  # [c] node in a slot, NO_NODE or PRIVATE
    heap: NDArray[np.int32]  # [c] evictable nodes, smallest first
    free: NDArray[np.int32]  # [c] stack of free slots
    control: NDArray[np.int64]  # [5] HEAP, FREE, TURN, HELD, TOUCHED
    age: NDArray[np.float64]  # [1] key of the last evicted block
    parameters: NDArray[np.float64]  # the policy's
    traits: NDArray[np.int64]  # [n] what an aging policy knows of the last use, see reuse_table


def new_state(nodes: int, slots: int, parameters: NDArray[np.float64]) -> State:
    """An empty pool of `slots` slots with room for `nodes` node ids."""
    return State(
        parent=np.full(nodes, -1, np.int32),
        depth=np.zeros(nodes, np.int32),
        touches=np.zeros(nodes),
        last=np.zeros(nodes),
        turn=np.full(nodes, -1, np.int64),
        sharers=np.zeros(nodes, np.uint64),
        stay=np.zeros(nodes),
        birth=np.zeros(nodes),
        slot=np.full(nodes, -1, np.int32),
        pins=np.zeros(nodes, np.int32),
        kids=np.zeros(nodes, np.int32),
        place=np.full(nodes, -1, np.int32),
        key=np.zeros(nodes),
        owner=np.full(slots, NO_NODE, np.int32),
        heap=np.zeros(slots, np.int32),
        free=np.arange(slots - 1, -1, -1, dtype=np.int32),
        control=np.array([0, slots, 0, 0, 0], np.int64),
        age=np.zeros(1),
        parameters=parameters,
        traits=np.zeros(nodes, np.int64),
    )


STATE = typeof(new_state(1, 1, np.zeros(1)))
NODES = types.int32[::1]

compiled = partial(njit, cache=True, forceinline=True, _nrt=False)
"""How the core is compiled: inlined into its callers and, as nothing here allocates, without reference
counts. Counting every array of a State at every call costs ten times the work itself."""

ESTIMATES = 64.0 * np.log(64.0 / np.maximum(64 - np.arange(65), 1))
"""Sharers estimated from the number of bits set."""


@compiled(types.float64(types.uint64))
def sharer_estimate(bits: Any) -> float:
    """Distinct sessions behind a 64-bit linear-counting sketch (Whang et al., 1990); 64 ln 64 at most."""
    bits -= (bits >> np.uint64(1)) & np.uint64(0x5555555555555555)
    bits = (bits & np.uint64(0x3333333333333333)) + ((bits >> np.uint64(2)) & np.uint64(0x3333333333333333))
    bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return float(ESTIMATES[(bits * np.uint64(0x0101010101010101)) >> np.uint64(56)])


@compiled(types.boolean(STATE, types.int32, types.int32))
def _leaves_before(s: Any, a: Any, b: Any) -> Any:
    if s.key[a] != s.key[b]:
        return s.key[a] < s.key[b]
    if s.turn[a] != s.turn[b]:
        return s.turn[a] < s.turn[b]
    if s.depth[a] != s.depth[b]:
        return s.depth[a] > s.depth[b]
    return a < b


@compiled(types.void(STATE, types.int64, types.int32))
def _rise(s: Any, at: Any, node: Any) -> None:
    while at > 0:
        above = (at - 1) >> 1
        other = s.heap[above]
        if not _leaves_before(s, node, other):
            break
        s.heap[at] = other
        s.place[other] = at
        at = above
    s.heap[at] = node
    s.place[node] = at


@compiled(types.void(STATE, types.int64, types.int32))
def sink(s: Any, at: Any, node: Any) -> None:
    """Put `node` at heap position `at` or below it, where it belongs."""
    size = s.control[HEAP]
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        if below + 1 < size and _leaves_before(s, s.heap[below + 1], s.heap[below]):
            below += 1
        other = s.heap[below]
        if not _leaves_before(s, other, node):
            break
        s.heap[at] = other
        s.place[other] = at
        at = below
    s.heap[at] = node
    s.place[node] = at


@compiled(types.boolean(STATE, types.int32))
def _evictable(s: Any, node: Any) -> Any:
    return s.slot[node] >= 0 and s.pins[node] == 0 and s.kids[node] == 0


@compiled(types.void(STATE, types.int32))
def offer(s: Any, node: Any) -> None:
    """Enter `node` in the heap if it is evictable now."""
    if _evictable(s, node) and s.place[node] < 0:
        at = s.control[HEAP]
        s.control[HEAP] = at + 1
        _rise(s, at, node)


@compiled(types.void(STATE, types.int32))
def withdraw(s: Any, node: Any) -> None:
    """Take `node` out of the heap if it is there."""
    at = s.place[node]
    if at < 0:
        return
    s.place[node] = -1
    size = s.control[HEAP] - 1
    s.control[HEAP] = size
    if at == size:
        return
    moved = s.heap[size]
    _rise(s, at, moved)
    if s.place[moved] == at:
        sink(s, at, moved)


@compiled(types.int64(STATE, NODES))
def match(s: Any, nodes: Any) -> Any:
    """Length of the longest resident prefix of `nodes`."""
    for i in range(nodes.size):
        if s.slot[nodes[i]] < 0:
            return i
    return nodes.size


@compiled(types.void(STATE, types.int32))
def _hold(s: Any, node: Any) -> None:
    if s.pins[node] == 0:
        s.control[HELD] += 1
    s.pins[node] += 1


@compiled(types.void(STATE, NODES))
def pin(s: Any, nodes: Any) -> None:
    """Hold resident `nodes`; each pin needs one unpin."""
    for i in range(nodes.size):
        withdraw(s, nodes[i])
        _hold(s, nodes[i])


@compiled(types.void(STATE, NODES))
def unpin(s: Any, nodes: Any) -> None:
    """Let go, tail first, so that a block becomes evictable before its parent."""
    for i in range(nodes.size - 1, -1, -1):
        s.pins[nodes[i]] -= 1
        if s.pins[nodes[i]] == 0:
            s.control[HELD] -= 1
        offer(s, nodes[i])


@compiled(types.void(STATE, types.int32, types.float64))
def _stays(s: Any, node: Any, turn: Any) -> None:
    if s.slot[node] >= 0:
        s.stay[node] += 1.0
    else:
        s.stay[node], s.birth[node] = 1.0, turn


@compiled(types.void(STATE, KEY_TYPE, NODES, types.float64, types.uint64))
def touch(s: Any, key: Any, nodes: Any, now: Any, session_bit: Any) -> None:
    """Count one use of `nodes` (resident or not) by one request and rank them anew.

    Evictable blocks among them are re-ranked in place; call once per request.
    """
    turn = s.control[TURN]
    s.control[TURN] = turn + 1
    for i in range(nodes.size - 1, -1, -1):
        node = nodes[i]
        previous = s.last[node] if s.touches[node] > 0 else now
        s.touches[node] += 1
        _stays(s, node, float(turn))
        s.last[node] = now
        s.turn[node] = turn
        s.sharers[node] |= session_bit
        s.key[node] = key(
            now,
            float(turn),
            s.touches[node],
            s.stay[node],
            s.birth[node],
            previous,
            sharer_estimate(s.sharers[node]),
            float(s.depth[node]),
            s.age[0],
            s.parameters,
        )
        if s.place[node] >= 0:
            withdraw(s, node)
            offer(s, node)


@compiled(types.void(STATE, KEY_TYPE, NODES, types.float64, types.float64, types.uint64))
def rank(s: Any, key: Any, nodes: Any, now: Any, turn: Any, session_bit: Any) -> None:
    """Rank `nodes` in a lower tier as the touch that another tier counts next will leave them.

    A tier that shares its statistics must not count a use twice, and its heap must not see them
    change: `rank`, the other tier's `touch`, then `offer_again`.
    """
    for i in range(nodes.size):
        node = nodes[i]
        withdraw(s, node)
        _stays(s, node, turn)
        s.key[node] = key(
            now,
            turn,
            s.touches[node] + 1,
            s.stay[node],
            s.birth[node],
            s.last[node] if s.touches[node] > 0 else now,
            sharer_estimate(s.sharers[node] | session_bit),
            float(s.depth[node]),
            s.age[0],
            s.parameters,
        )


@compiled(types.void(STATE, NODES))
def offer_again(s: Any, nodes: Any) -> None:
    """Put back into the heap what `rank` took out of it."""
    for i in range(nodes.size):
        offer(s, nodes[i])


@compiled(types.int32(STATE, types.int32))
def remove(s: Any, node: Any) -> Any:
    """Make an unpinned block non-resident; returns its slot, now private: free it or fill it."""
    slot = s.slot[node]
    s.owner[slot] = PRIVATE
    s.control[HELD] += 1
    s.slot[node] = -1
    parent = s.parent[node]
    if parent >= 0:
        s.kids[parent] -= 1
        if s.place[node] == 0 and _evictable(s, parent):
            s.place[node] = -1
            sink(s, 0, parent)  # it often leaves next: in its child's place it need not climb
            return slot
    withdraw(s, node)
    if parent >= 0:
        offer(s, parent)
    return slot


@compiled(types.void(STATE, types.int32))
def free_slot(s: Any, slot: Any) -> None:
    """Return a private slot to the free stack."""
    s.owner[slot] = NO_NODE
    s.free[s.control[FREE]] = slot
    s.control[FREE] += 1
    s.control[HELD] -= 1


@compiled(types.UniTuple(types.int32, 2)(STATE))
def take_slot(s: Any) -> Any:
    """(slot, evicted node): a private slot, from the free stack (evicted is -1) or by eviction.

    (-1, -1) when every resident block is pinned or has resident children that are.
    """
    left = s.control[FREE]
    if left > 0:
        s.control[FREE] = left - 1
        slot = s.free[left - 1]
        s.owner[slot] = PRIVATE
        s.control[HELD] += 1
        return slot, np.int32(-1)
    if s.control[HEAP] == 0:
        return np.int32(-1), np.int32(-1)
    node = s.heap[0]
    s.age[0] = s.key[node]
    return remove(s, node), node


@compiled(types.int32(STATE, types.int32, types.int32))
def commit(s: Any, node: Any, slot: Any) -> Any:
    """Publish the filled private `slot` as block `node`, pinned once; returns the slot that backs it.

    If another lease published the block first, its slot is returned and the given one freed.
    """
    if s.slot[node] >= 0:
        withdraw(s, node)
        _hold(s, node)
        free_slot(s, slot)
        return s.slot[node]
    s.pins[node] += 1
    s.slot[node] = slot
    s.owner[slot] = node
    parent = s.parent[node]
    if parent >= 0:
        withdraw(s, parent)
        s.kids[parent] += 1
    return slot
