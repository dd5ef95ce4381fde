"""Tiers keep every copy where they say it is: moves are executed on a model of the memories."""

from collections import defaultdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from kvtool.cache.policies import POLICIES
from kvtool.cache.tiers import Move, Staging, Tier, TieredLease, TieredPool

LRU = POLICIES.load("lru")


def chain(pool: TieredPool, length: int, parent: int = -1) -> list[int]:
    nodes: list[int] = []
    for _ in range(length):
        parent = pool.add_node(parent)
        nodes.append(parent)
    return nodes


def serve(pool: TieredPool, nodes: list[int], now: float) -> TieredLease:
    """A request that computes what is missing and ends at once."""
    lease = pool.acquire(nodes, len(nodes), now)
    assert lease is not None
    pool.settle(lease, len(lease.loads))
    pool.commit(lease, len(nodes))
    pool.release(lease)
    return lease


def test_eviction_demotes_leaf_first_and_a_hit_promotes_in_order() -> None:
    pool = TieredPool(LRU, device=3, host=4)
    a, b = chain(pool, 3), chain(pool, 3)
    serve(pool, a, 0.0)
    assert pool.take_moves() == []
    serve(pool, b, 1.0)
    moves = pool.take_moves()
    assert [(move.node, move.source, move.target) for move in moves] == [
        (node, Tier.DEVICE, Tier.HOST) for node in reversed(a)
    ]
    assert [pool.tier_of(node) for node in a] == [Tier.HOST] * 3
    lease = pool.acquire(a, 3, 2.0, most=2)
    assert lease is not None
    assert [(move.node, move.source) for move in lease.loads] == [(a[0], Tier.HOST), (a[1], Tier.HOST)]
    assert [move.target_slot for move in lease.loads] == lease.slots[:2]
    pool.settle(lease, 2)
    assert pool.locate(a) == [Tier.DEVICE, Tier.DEVICE, Tier.HOST]
    assert [pool.lower[Tier.HOST].slot_of(node) >= 0 for node in a] == [False, False, True], "host gives up"
    pool.release(lease)
    pool.check()


def test_host_overflow_goes_to_disk_and_a_full_disk_loses_the_oldest() -> None:
    pool = TieredPool(LRU, device=1, host=1, disk=1)
    nodes = [pool.add_node(-1) for _ in range(4)]
    for now, node in enumerate(nodes):
        serve(pool, [node], float(now))
    assert [pool.tier_of(node) for node in nodes] == [None, Tier.DISK, Tier.HOST, Tier.DEVICE]
    assert pool.lost == 1
    moves = pool.take_moves()
    # the third eviction empties each slot before it is filled from above
    assert moves[-2:] == [
        Move(nodes[1], Tier.HOST, 0, Tier.DISK, 0),
        Move(nodes[2], Tier.DEVICE, 0, Tier.HOST, 0),
    ]
    pool.check()


def test_a_block_that_is_in_the_shards_is_not_written_to_disk() -> None:
    pool = TieredPool(LRU, device=1, disk=2)
    kept = pool.add_node(-1, shard_row=7)
    other = pool.add_node(-1)
    lease = pool.acquire([kept], 1, 0.0)
    assert lease is not None and lease.loads == [Move(kept, Tier.SHARDS, 7, Tier.DEVICE, 0)]
    pool.settle(lease, 1)
    pool.release(lease)
    serve(pool, [other], 1.0)
    assert pool.take_moves() == [] and pool.tier_of(kept) is Tier.SHARDS and pool.lost == 0


def test_a_bad_copy_is_discarded_and_the_rest_computed() -> None:
    pool = TieredPool(LRU, device=3, host=3)
    a, b = chain(pool, 3), chain(pool, 3)
    serve(pool, a, 0.0)
    serve(pool, b, 1.0)
    lease = pool.acquire(a, 3, 2.0)
    assert lease is not None and len(lease.loads) == 3
    pool.settle(lease, 1)
    assert (lease.hit, lease.loaded, lease.published) == (0, 1, 1)
    assert pool.lower[Tier.HOST].slot_of(a[1]) == -1 and pool.broken == 1
    assert pool.lower[Tier.HOST].slot_of(a[2]) >= 0, "copies below a bad one become reachable again"
    pool.commit(lease, 3)
    pool.release(lease)
    pool.check()


def test_a_late_copy_is_kept() -> None:
    pool = TieredPool(LRU, device=1, host=2)
    a, b = pool.add_node(-1), pool.add_node(-1)
    serve(pool, [a], 0.0)
    serve(pool, [b], 1.0)
    lease = pool.acquire([a], 1, 2.0)
    assert lease is not None
    pool.settle(lease, 0, bad=False)
    assert pool.lower[Tier.HOST].slot_of(a) >= 0 and pool.broken == 0
    pool.release(lease)


def test_a_use_counts_once_however_many_tiers_rank_it() -> None:
    pool = TieredPool(LRU, device=2, host=2, disk=2)
    node = pool.add_node(-1)
    serve(pool, [node], 0.0)
    serve(pool, [node], 1.0)
    assert pool.device.state.touches[node] == 2.0 and pool.device.state.last[node] == 1.0
    keys = [float(tier.state.key[node]) for tier in (pool.device, *pool.lower.values())]
    assert keys == [1.0, 1.0, 1.0]


def test_evicting_a_prefix_takes_what_is_below_it_and_leaves_what_is_held() -> None:
    pool = TieredPool(LRU, device=6, host=6)
    trunk = chain(pool, 2)
    left, right = chain(pool, 2, trunk[-1]), chain(pool, 2, trunk[-1])
    serve(pool, trunk + left, 0.0)
    held = pool.acquire(trunk + right, 4, 1.0)
    assert held is not None
    pool.settle(held, 0)
    pool.commit(held, 4)
    assert pool.evict([trunk[0]]) == 2
    assert [pool.tier_of(node) for node in trunk + right] == [Tier.DEVICE] * 4
    pool.release(held)
    assert pool.clear() == 4 and not pool.resident().any()
    pool.check()


def test_adopted_blocks_are_loads_of_their_slots() -> None:
    pool = TieredPool(LRU, device=4, disk=5)
    nodes = chain(pool, 2)
    pool.adopt(Tier.DISK, [(nodes[1], 0), (nodes[0], 3)])
    pool.check()
    lease = pool.acquire(nodes, 3, 0.0)
    assert lease is not None and [move.source_slot for move in lease.loads] == [3, 0]


class Memories(RuleBasedStateMachine):
    """Every tier's memory is a dict slot -> node, changed only by moves, loads and fills."""

    leases = Bundle("leases")

    @initialize(
        device=st.integers(2, 8),
        host=st.integers(0, 6),
        disk=st.integers(0, 6),
        policy=st.sampled_from(POLICIES.names()),
    )
    def start(self, device: int, host: int, disk: int, policy: str) -> None:
        self.pool = TieredPool(POLICIES.load(policy), device, host, disk)
        self.memory: dict[Tier, dict[int, int]] = defaultdict(dict)
        self.nodes: list[int] = []
        self.live: list[TieredLease] = []
        self.stagings: list[Staging] = []
        self.now = 0.0

    def paths(self, node: int) -> list[int]:
        path = []
        while node >= 0:
            path.append(node)
            node = int(self.pool.device.state.parent[node])
        return path[::-1]

    def execute(self) -> None:
        for move in self.pool.take_moves():
            assert self.memory[move.source][move.source_slot] == move.node, "overwritten before it was moved"
            self.memory[move.target][move.target_slot] = move.node

    @rule(parent=st.integers(-1, 30), shard=st.booleans())
    def add(self, parent: int, shard: bool) -> None:
        parent = self.nodes[parent] if 0 <= parent < len(self.nodes) else -1
        shard = shard and (parent < 0 or parent in self.memory[Tier.SHARDS].values())
        row = len(self.memory[Tier.SHARDS]) if shard else -1
        node = self.pool.add_node(parent, row)
        if shard:
            self.memory[Tier.SHARDS][row] = node
        self.nodes.append(node)

    @rule(target=leases, leaf=st.integers(0, 30), spare=st.integers(0, 2), fail=st.integers(0, 12))
    def acquire(self, leaf: int, spare: int, fail: int) -> TieredLease | None:
        nodes = self.paths(self.nodes[leaf % len(self.nodes)]) if self.nodes else []
        self.now += 1
        want = len(nodes) + spare
        fits = self.pool.device.fits(nodes, want)
        lease = self.pool.acquire(nodes, want, self.now, f"s{leaf % 3}")
        assert (lease is not None) == fits
        if lease is None:
            return None
        self.execute()
        loaded = 0
        for move in lease.loads:
            assert self.memory[move.source][move.source_slot] == move.node
            if fail == loaded:
                break
            self.memory[Tier.DEVICE][move.target_slot] = move.node
            loaded += 1
        self.pool.settle(lease, loaded, bad=fail % 2 == 0)
        assert all(self.memory[Tier.DEVICE][lease.slots[i]] == nodes[i] for i in range(lease.published))
        self.live.append(lease)
        return lease

    @rule(lease=leases, count=st.integers(1, 4))
    def fill(self, lease: TieredLease | None, count: int) -> None:
        if lease is None or lease not in self.live:
            return
        upto = min(lease.published + count, len(lease.nodes))
        for index in range(lease.published, upto):
            self.memory[Tier.DEVICE][lease.slots[index]] = lease.nodes[index]
        self.pool.commit(lease, upto)

    @rule(lease=leases)
    def decode(self, lease: TieredLease | None) -> None:
        if lease is None or lease not in self.live or lease.published < len(lease.nodes):
            return
        if len(lease.slots) == len(lease.nodes) and not self.pool.extend(lease, 1):
            return
        self.execute()
        node = self.pool.add_node(lease.nodes[-1] if lease.nodes else -1)
        self.nodes.append(node)
        self.now += 1
        self.pool.append(lease, node, self.now)
        self.memory[Tier.DEVICE][lease.slots[lease.published]] = node
        self.pool.commit(lease, lease.published + 1)

    @rule(lease=consumes(leases))
    def release(self, lease: TieredLease | None) -> None:
        if lease is not None and any(lease is other for other in self.live):
            self.live = [other for other in self.live if other is not lease]
            self.pool.release(lease)

    @rule(leaf=st.integers(0, 30), most=st.integers(0, 6))
    def stage(self, leaf: int, most: int) -> None:
        if self.nodes and Tier.HOST in self.pool.lower:
            staging = self.pool.stage(self.paths(self.nodes[leaf % len(self.nodes)]), most)
            assert len(staging.moves) + len(staging.held) <= most
            self.execute()
            self.stagings.append(staging)

    @rule(number=st.integers(0, 5), count=st.integers(0, 4), end=st.sampled_from(["", "late", "bad"]))
    def land(self, number: int, count: int, end: str) -> None:
        if not self.stagings:
            return
        staging = self.stagings[number % len(self.stagings)]
        arrived = staging.moves[:count]
        for move in arrived:
            assert self.memory[move.source][move.source_slot] == move.node
            self.memory[Tier.HOST][move.target_slot] = move.node
        self.pool.land(staging, count)
        assert all(self.pool.lower[Tier.HOST].slot_of(move.node) >= 0 for move in arrived)
        if end:
            rest = list(staging.moves)
            self.pool.abandon(staging)
            if rest and end == "bad":
                self.pool.discard(rest[0].node, rest[0].source)
            self.pool.unstage(staging)
            self.stagings.remove(staging)

    @rule(most=st.integers(1, 4))
    def back_up(self, most: int) -> None:
        before = [self.pool.tier_of(node) for node in self.nodes]
        moves = self.pool.back_up(most)
        assert len(moves) <= most and all(move.target is Tier.DISK for move in moves)
        assert [self.pool.tier_of(node) for node in self.nodes] == before
        self.execute()

    @rule(node=st.integers(0, 30))
    def evict(self, node: int) -> None:
        if self.nodes:
            self.pool.evict([self.nodes[node % len(self.nodes)]])

    @invariant()
    def every_copy_is_where_it_is_said_to_be(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check()
        for tier, pool in ((Tier.DEVICE, self.pool.device), *self.pool.lower.items()):
            for node in self.nodes:
                slot = pool.slot_of(node)
                assert slot < 0 or self.memory[tier][slot] == node

    def teardown(self) -> None:
        for lease in getattr(self, "live", []):
            self.pool.release(lease)
        for staging in getattr(self, "stagings", []):
            self.pool.abandon(staging)
            self.pool.unstage(staging)
        if hasattr(self, "pool"):
            self.pool.clear()
            self.pool.check()
            assert not self.pool.resident().any()
            assert self.pool.device.available() == self.pool.device.capacity


TestMemories = Memories.TestCase
TestMemories.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(0, 3)), max_size=60),
    st.sampled_from(["lru", "cost", "fitted"]),
    st.integers(4, 8),
    st.integers(0, 4),
    st.integers(1, 10),
)
def test_copies_made_for_a_restart_change_no_tier_of_any_block(
    asks: list[tuple[int, int, int]], policy: str, device: int, host: int, disk: int
) -> None:
    """Two pools get the same requests, one makes copies in between: both find the same blocks.

    Under policies that do not ask how long a block has been in a tier; a copy has been there longer.
    """
    plain, copying = (TieredPool(POLICIES.load(policy), device, host, disk) for _ in range(2))
    chains = [(chain(plain, 4), chain(copying, 4)) for _ in range(6)]
    for now, (number, length, most) in enumerate(asks):
        for pool, nodes in zip((plain, copying), chains[number], strict=True):
            serve(pool, nodes[:length], float(now))
        if most:
            copying.back_up(most)
        for ours, theirs in chains:
            assert [plain.tier_of(node) for node in ours] == [copying.tier_of(node) for node in theirs]
    copying.check()
    assert copying.lost == plain.lost


def test_a_copy_made_for_a_restart_survives_where_there_is_room_and_gives_way_where_there_is_none() -> None:
    pool = TieredPool(LRU, device=2, disk=2)
    a, b, c = (pool.add_node(-1) for _ in range(3))
    for now, node in enumerate((a, b)):
        serve(pool, [node], float(now))
    assert len(pool.back_up(4)) == 2 and not pool.lower[Tier.DISK].free()
    pool.take_moves()
    serve(pool, [c], 2.0)
    assert pool.take_moves() == [], "what leaves memory has its copy already"
    assert [pool.tier_of(node) for node in (a, b, c)] == [Tier.DISK, Tier.DEVICE, Tier.DEVICE]
    d, e = (pool.add_node(-1) for _ in range(2))
    serve(pool, [d], 3.0)
    serve(pool, [e], 4.0)
    assert [pool.tier_of(node) for node in (a, b, c)] == [None, Tier.DISK, Tier.DISK]
    pool.check()


def test_staged_blocks_come_to_the_host_tier_stay_there_and_change_no_rank() -> None:
    pool = TieredPool(LRU, device=1, host=3, disk=32)
    a = chain(pool, 2)
    pool.adopt(Tier.DISK, [(a[0], 4), (a[1], 2)])
    for now in range(3):
        serve(pool, [pool.add_node(-1)], float(now))
    pool.take_moves()
    staging = pool.stage(a, 8)
    assert [move[:4] for move in staging.moves] == [
        (a[0], Tier.DISK, 4, Tier.HOST),
        (a[1], Tier.DISK, 2, Tier.HOST),
    ]
    pool.land(staging, 2)
    assert pool.locate(a) == [Tier.HOST] * 2 and staging.moves == []
    assert pool.device.state.touches[a[0]] == 0, "a guess is no use"
    for now in range(3, 9):
        serve(pool, [pool.add_node(-1)], float(now))
    assert pool.locate(a) == [Tier.HOST] * 2, "held, though never used"
    pool.unstage(staging)
    for now in range(9, 12):
        serve(pool, [pool.add_node(-1)], float(now))
    assert pool.locate(a) == [Tier.DISK] * 2, "the first to leave once it was wrong"
    pool.check()


def test_making_room_for_one_staged_block_does_not_push_out_the_next() -> None:
    """The disk is full of the chain, and each victim of the host tier wants a place there."""
    pool = TieredPool(LRU, device=1, host=2, disk=4)
    a = chain(pool, 3)
    pool.adopt(Tier.DISK, [(node, slot) for slot, node in enumerate(a)])
    for now in range(3):
        serve(pool, [pool.add_node(-1)], float(now))
    staging = pool.stage(a, 8)
    assert [move.node for move in staging.moves] == a[:2]
    assert [pool.lower[Tier.DISK].slot_of(node) for node in a] == [0, 1, 2]
    pool.abandon(staging)
    pool.unstage(staging)
    pool.check()
    assert all(pool.available() == pool.capacity for pool in pool.lower.values())


def test_adopting_needs_an_empty_tier() -> None:
    pool = TieredPool(LRU, device=1, host=1)
    a, b = pool.add_node(-1), pool.add_node(-1)
    serve(pool, [a], 0.0)
    serve(pool, [b], 1.0)
    with pytest.raises(AssertionError):
        pool.adopt(Tier.HOST, [(b, 0)])
