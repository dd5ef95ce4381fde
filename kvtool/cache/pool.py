"""The pool: which blocks are resident, who holds them, which one leaves. Bookkeeping only, no tensors.

The simulator drives the same compiled core over a whole log; this class drives it one request at a
time for the runtime. A request's life:

    lease = pool.acquire(nodes, want, now, session)   # hits pinned, private slots for the rest
    pool.commit(lease, upto)                          # blocks [.., upto) are filled: publish them
    pool.extend(lease, 1)                             # decode crossed into a new block
    pool.release(lease)                               # unpinned tail first; unpublished slots freed
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvtool.blocks import fingerprint
from kvtool.cache import aging, core
from kvtool.cache.policy import Policy

NodeIds = NDArray[np.int32]
"""Dense node ids of a prompt's full blocks, front to back, int32 [n]."""

STATISTICS = ("parent", "depth", "touches", "last", "turn", "sharers", "traits")
"""Fields of the state that describe a node in all tiers alike."""

PER_TIER = ("stay", "birth", "slot", "pins", "kids", "place", "key")
EMPTY = {"parent": -1, "turn": -1, "slot": -1, "place": -1}


@dataclass(slots=True)
class Lease:
    """What the pool hands out for one request.

    `slots[i]` backs block i of the request. Blocks [0, hit) were resident; [hit, published) this
    request has published; the rest are private until `commit`. `evicted` lists (node, slot) that left
    to make room, in order: a tiered store copies them away before the slots are written.
    """

    nodes: list[int]
    hit: int
    published: int
    slots: list[int]
    evicted: list[tuple[int, int]] = field(default_factory=list)


def session_bit(session: str | None, priority: int = 1) -> np.uint64:
    """The session's bit in a block's sharing sketch, as many as its priority; no session, no bit."""
    bits = 0
    for part in range(priority if session is not None else 0):
        name = f"{session}\0{part}" if part else f"{session}"
        bits |= 1 << (int(fingerprint(name.encode())[:8], 16) % 64)
    return np.uint64(bits)


class Pool:
    """A tier's blocks under one policy. Invariants are listed and tested in `check`.

    A lower tier names the tier `above` whose nodes and statistics it shares: nodes are added and uses
    counted there, and both appear here. What it holds need not include a block's parent.
    """

    def __init__(self, capacity: int, policy: Policy, above: "Pool | None" = None) -> None:
        self.capacity = capacity
        self.policy = policy
        self.nodes = 0
        self._above = above
        self._below: list[Pool] = []
        self._state = core.new_state(1024, capacity, policy.parameter_array())
        if above is not None:
            assert above.nodes == 0, "tiers are joined before nodes are added"
            above._below.append(self)
            self._share(above)

    @property
    def state(self) -> core.State:
        """The arrays themselves, for the store and for tests; do not write to them."""
        return self._state

    def add_node(self, parent: int) -> int:
        """A new block identity below `parent` (-1: the first block of a prompt)."""
        assert -1 <= parent < self.nodes and self._above is None
        if self.nodes == len(self._state.parent):
            self._grow()
        node = self.nodes
        self.nodes += 1
        for pool in self._below:
            pool.nodes = self.nodes
        self._state.parent[node] = parent
        self._state.depth[node] = 0 if parent < 0 else self._state.depth[parent] + 1
        return node

    def renew_node(self, node: int, parent: int) -> None:
        """Give the id of a forgotten block, resident nowhere, to a new identity below `parent`."""
        state = self._state
        for pool in (self, *self._below):
            assert pool._state.slot[node] < 0 and pool._state.kids[node] == 0
            pool._state.key[node] = 0.0
        state.parent[node] = parent
        state.depth[node] = 0 if parent < 0 else state.depth[parent] + 1
        state.touches[node] = state.last[node] = state.sharers[node] = state.traits[node] = 0
        state.turn[node] = -1

    def touch(self, nodes: list[int], now: float, session: str | None = None) -> None:
        """Count one use of `nodes` at `now` seconds and rank them anew, in the tiers below too."""
        ids, bit = _ids(nodes), session_bit(session)
        if self.policy.ages:
            aging.observe(self._state, ids, now)
            for pool in self._below:
                aging.pass_time(pool._state, len(nodes), now)
        for pool in self._below:
            turn = float(self._state.control[core.TURN])
            core.rank(pool._state, pool.policy.key, ids, now, turn, bit)
        core.touch(self._state, self.policy.key, ids, now, bit)
        for pool in self._below:
            core.offer_again(pool._state, ids)

    def match(self, nodes: list[int]) -> int:
        """How many leading blocks of `nodes` are resident."""
        return int(core.match(self._state, _ids(nodes)))

    def acquire(
        self, nodes: list[int], want: int, now: float, session: str | None = None, most: int | None = None
    ) -> Lease | None:
        """Pin the resident prefix of `nodes` (at most `most` blocks) and lease slots up to `want` blocks.

        `want` counts the request's blocks in all, hits and a partial last one included. `now` is in
        seconds. The touch counts for all of `nodes`. None, and nothing has changed but the touch, when
        there is not room: every other block is held.
        """
        self.touch(nodes, now, session)
        state, ids = self._state, _ids(nodes)
        hit = int(core.match(state, ids[:most]))
        core.pin(state, ids[:hit])
        lease = Lease(list(nodes), hit, hit, [int(slot) for slot in state.slot[ids[:hit]]])
        if self.available() < want - hit:
            self.release(lease)
            return None
        self.extend(lease, want - hit)
        return lease

    def fits(self, nodes: list[int], want: int, most: int | None = None) -> bool:
        """Whether `acquire` would find room now; nothing is touched."""
        hits = _ids(nodes[: self.match(nodes[:most])])
        newly_held = int((self._state.pins[hits] == 0).sum())
        return self.available() - newly_held >= want - len(hits)

    def available(self) -> int:
        """Slots that could be leased now: free ones, and all blocks that no lease holds or depends on."""
        return self.capacity - int(self._state.control[core.HELD])

    def extend(self, lease: Lease, blocks: int) -> bool:
        """Lease `blocks` more private slots; False (and what was got is kept) when the pool is held."""
        for _ in range(blocks):
            slot, evicted = core.take_slot(self._state)
            if slot < 0:
                return False
            lease.slots.append(int(slot))
            if evicted >= 0:
                lease.evicted.append((int(evicted), int(slot)))
        return True

    def commit(self, lease: Lease, upto: int) -> None:
        """Publish blocks [lease.published, upto), whose slots are filled. Their nodes must be known.

        A block that another lease published first is taken over: `lease.slots` then names its slot.
        """
        for index in range(lease.published, upto):
            lease.slots[index] = int(core.commit(self._state, lease.nodes[index], lease.slots[index]))
        lease.published = max(lease.published, upto)

    def release(self, lease: Lease, output_tokens: int = -1) -> None:
        """End a lease: published blocks become evictable, private slots are free again.

        output_tokens: how long the answer was, -1 unknown; a policy that ages ranks by it.
        """
        for slot in lease.slots[lease.published :]:
            core.free_slot(self._state, slot)
        core.unpin(self._state, _ids(lease.nodes[: lease.published]))
        if self.policy.ages:
            for pool in (self, *self._below):
                aging.conclude(pool._state, _ids(lease.nodes), output_tokens)
        lease.slots, lease.nodes, lease.published = [], [], 0

    def drop(self, node: int) -> bool:
        """Make one evictable block non-resident (a bad shard block, an admin's evict); False if held."""
        if self._state.place[node] < 0:
            return False
        core.free_slot(self._state, core.remove(self._state, node))
        return True

    def slot_of(self, node: int) -> int:
        """The slot that holds `node`, -1 when it is not resident."""
        return int(self._state.slot[node])

    def free(self) -> int:
        """Slots that hold nothing."""
        return int(self._state.control[core.FREE])

    def take(self) -> tuple[int, int]:
        """(slot, evicted node or -1): a private slot outside any lease; (-1, -1) when all is held."""
        slot, evicted = core.take_slot(self._state)
        return int(slot), int(evicted)

    def place(self, node: int, slot: int) -> None:
        """Publish a private slot as block `node`, held by nobody."""
        core.commit(self._state, node, slot)
        core.unpin(self._state, _ids([node]))

    def give_back(self, slot: int) -> None:
        """A private slot that `take` gave and that was not filled is free again."""
        core.free_slot(self._state, slot)

    def pin(self, nodes: list[int]) -> None:
        """Hold resident `nodes` outside any lease; each pin needs one unpin."""
        core.pin(self._state, _ids(nodes))

    def unpin(self, nodes: list[int]) -> None:
        """Let go of what `pin` held, tail first."""
        core.unpin(self._state, _ids(nodes))

    def evictable(self) -> list[int]:
        """Blocks that could leave now, in no order."""
        return [int(node) for node in self._state.heap[: self._state.control[core.HEAP]]]

    def discard(self, node: int) -> bool:
        """`drop` a block of a lower tier even if children of it stay here; False if it is pinned."""
        if self._state.slot[node] < 0 or self._state.pins[node] > 0:
            return False
        core.free_slot(self._state, core.remove(self._state, node))
        return True

    def adopt(self, blocks: list[tuple[int, int]]) -> None:
        """Fill an empty pool with (node, slot) as an earlier process left them."""
        assert self._state.control[core.FREE] == self.capacity
        taken = {slot for _, slot in blocks}
        free = [slot for slot in range(self.capacity - 1, -1, -1) if slot not in taken]
        self._state.free[: len(free)] = free
        self._state.control[core.FREE] = len(free)
        for node, slot in blocks:
            self._state.owner[slot] = core.PRIVATE
            self._state.control[core.HELD] += 1
            self.place(node, slot)

    def check(self) -> None:
        """Assert every invariant; slow, for tests and debugging."""
        s, n = self._state, self.nodes
        resident = np.flatnonzero(s.slot[:n] >= 0)
        owned = np.flatnonzero(s.owner >= 0)
        free = s.free[: s.control[core.FREE]]
        private = np.flatnonzero(s.owner == core.PRIVATE)
        assert (s.owner[s.slot[resident]] == resident).all(), "a resident block's slot names another owner"
        assert len(owned) == len(resident), "slots and resident blocks do not pair up"
        assert s.control[core.HELD] == len(private) + (s.pins[:n] > 0).sum(), "held slots are miscounted"
        assert sorted([*owned, *free, *private]) == list(range(self.capacity)), "a slot is shared or lost"
        kids = np.zeros(n, np.int64)
        for node in resident:
            parent = s.parent[node]
            if parent >= 0:
                assert s.slot[parent] >= 0 or self._above is not None, (
                    "a resident block's parent is not resident"
                )
                kids[parent] += 1
        assert (kids == s.kids[:n]).all(), "resident children are miscounted"
        assert (s.pins[:n] >= 0).all() and (s.slot[:n][s.pins[:n] > 0] >= 0).all(), "a pinned block left"
        evictable = {int(node) for node in resident if s.pins[node] == 0 and kids[node] == 0}
        heap = s.heap[: s.control[core.HEAP]]
        assert set(heap.tolist()) == evictable and len(heap) == len(evictable), (
            "the heap is not the evictable set"
        )
        assert all(s.heap[s.place[node]] == node for node in evictable), "a heap position is wrong"

    def _grow(self) -> None:
        for pool in (self, *self._below):
            grown = {}
            for name in PER_TIER if pool._above is not None else (*STATISTICS, *PER_TIER):
                old = getattr(pool._state, name)
                new = np.full(len(old) * 2, EMPTY.get(name, 0), old.dtype)
                new[: len(old)] = old
                grown[name] = new
            pool._state = pool._state._replace(**grown)
        for pool in self._below:
            pool._share(self)

    def _share(self, above: "Pool") -> None:
        shared = {name: getattr(above._state, name) for name in STATISTICS}
        self._state = self._state._replace(**shared)


def _ids(nodes: list[int]) -> NodeIds:
    return np.array(nodes, dtype=np.int32)
