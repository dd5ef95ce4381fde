"""The pool: invariants under random leases, literal eviction orders, and a slow reference."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvtool.cache.core import sharer_estimate
from kvtool.cache.policies import POLICIES
from kvtool.cache.pool import Lease, Pool, session_bit

LRU = POLICIES.load("lru")


def chain(pool: Pool, length: int, parent: int = -1) -> list[int]:
    nodes = []
    for _ in range(length):
        parent = pool.add_node(parent)
        nodes.append(parent)
    return nodes


def serve(pool: Pool, nodes: list[int], now: float = 0.0) -> Lease:
    lease = pool.acquire(nodes, len(nodes), now)
    assert lease is not None
    seen = Lease(list(nodes), lease.hit, lease.hit, list(lease.slots), list(lease.evicted))
    pool.commit(lease, len(nodes))
    pool.release(lease)
    return seen


def test_lru_evicts_the_oldest_chain_from_its_tail() -> None:
    pool = Pool(5, LRU)
    a, b, c = chain(pool, 3), chain(pool, 2), chain(pool, 4)
    serve(pool, a)
    serve(pool, b)
    lease = serve(pool, c)
    assert [node for node, _ in lease.evicted] == [a[2], a[1], a[0], b[1]]
    assert (pool.match(a), pool.match(b), pool.match(c)) == (0, 1, 4)


def test_a_hit_renews_the_whole_prefix_and_a_shared_parent_outlives_its_children() -> None:
    pool = Pool(4, LRU)
    root = chain(pool, 1)
    left, right = root + chain(pool, 1, root[0]), root + chain(pool, 1, root[0])
    other = chain(pool, 2)
    serve(pool, left)
    serve(pool, right)
    assert serve(pool, left).hit == 2
    lease = serve(pool, other)
    assert [node for node, _ in lease.evicted] == [right[1]]
    assert pool.match(left) == 2


def test_pinned_blocks_stay_and_a_request_that_cannot_fit_changes_nothing() -> None:
    pool = Pool(4, LRU)
    a, b = chain(pool, 3), chain(pool, 2)
    held = pool.acquire(a, 3, 0.0)
    assert held is not None
    pool.commit(held, 3)
    assert pool.acquire(b, 2, 1.0) is None
    pool.check()
    assert pool.match(a) == 3 and pool.available() == 1
    pool.release(held)
    assert pool.available() == 4
    assert serve(pool, b).hit == 0


def test_two_leases_that_compute_the_same_block_end_with_one_copy() -> None:
    pool = Pool(6, LRU)
    nodes = chain(pool, 2)
    first, second = pool.acquire(nodes, 2, 0.0), pool.acquire(nodes, 2, 0.0)
    assert first is not None and second is not None
    assert set(first.slots).isdisjoint(second.slots)
    pool.commit(first, 2)
    pool.commit(second, 2)
    assert second.slots == first.slots
    pool.check()
    assert pool.available() == 4
    pool.release(first)
    assert pool.available() == 4
    pool.release(second)
    assert pool.available() == 6


def test_uncommitted_blocks_are_not_served_and_are_freed() -> None:
    pool = Pool(4, LRU)
    nodes = chain(pool, 3)
    lease = pool.acquire(nodes, 4, 0.0)
    assert lease is not None and len(lease.slots) == 4
    pool.commit(lease, 1)
    assert pool.match(nodes) == 1
    pool.release(lease)
    pool.check()
    assert pool.available() == 4 and pool.match(nodes) == 1


def test_the_last_token_rule_is_the_callers_and_most_caps_the_hit() -> None:
    pool = Pool(4, LRU)
    nodes = chain(pool, 2)
    serve(pool, nodes)
    lease = pool.acquire(nodes, 2, 1.0, most=1)
    assert lease is not None and lease.hit == 1 and len(lease.slots) == 2


def test_an_unheld_block_can_be_dropped_and_a_held_one_cannot() -> None:
    pool = Pool(4, LRU)
    nodes = chain(pool, 2)
    serve(pool, nodes)
    assert not pool.drop(nodes[0]), "its child depends on it"
    assert pool.drop(nodes[1]) and pool.drop(nodes[0])
    assert not pool.drop(nodes[0])
    pool.check()
    assert pool.available() == 4


def test_node_ids_grow_past_the_first_arrays() -> None:
    pool = Pool(3, LRU)
    nodes = chain(pool, 5000)
    lease = pool.acquire(nodes, 3, 0.0)
    assert lease is not None
    pool.commit(lease, 3)
    pool.release(lease)
    pool.check()
    assert pool.match(nodes) == 3 and pool.state.depth[nodes[-1]] == 4999


@pytest.mark.parametrize(("sessions", "low", "high"), [(0, 0, 0), (1, 1, 1.1), (5, 3.5, 5.5), (40, 28, 60)])
def test_sharing_sketch_estimates_distinct_sessions(sessions: int, low: float, high: float) -> None:
    bits = np.uint64(0)
    for number in range(sessions):
        bits |= session_bit(f"session-{number}")
        bits |= session_bit(f"session-{number}")
    assert low <= sharer_estimate(bits) <= high


class ReferenceLRU:
    """Leaf-only LRU in plain Python: sets and a sort per eviction."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.turn = capacity, 0
        self.last: dict[int, int] = {}
        self.resident: set[int] = set()
        self.parent: dict[int, int] = {}

    def request(self, nodes: list[int]) -> int:
        hit = 0
        while hit < len(nodes) and nodes[hit] in self.resident:
            hit += 1
        for node in nodes:
            self.last[node] = self.turn
        self.turn += 1
        held = set(nodes[:hit])
        for node in nodes[hit:]:
            if len(self.resident) == self.capacity:
                parents = {self.parent[child] for child in self.resident}
                leaves = [n for n in self.resident if n not in parents and n not in held]
                if not leaves:
                    break
                self.resident.remove(min(leaves, key=lambda n: (self.last[n], -self.depth(n), n)))
            self.resident.add(node)
            held.add(node)
        return hit

    def depth(self, node: int) -> int:
        return 0 if self.parent[node] < 0 else 1 + self.depth(self.parent[node])


class PoolMachine(RuleBasedStateMachine):
    """Random tries, overlapping leases, partial commits, drops: `check` holds after every step."""

    @initialize(capacity=st.integers(1, 12))
    def start(self, capacity: int) -> None:
        self.pool = Pool(capacity, LRU)
        self.paths: list[list[int]] = [[self.pool.add_node(-1)]]
        self.leases: list[Lease] = []
        self.now = 0.0

    @rule(data=st.data())
    def branch(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from([[], *self.paths]))
        self.paths.append([*path, self.pool.add_node(path[-1] if path else -1)])

    @rule(data=st.data(), extra=st.integers(0, 2))
    def acquire(self, data: st.DataObject, extra: int) -> None:
        path = data.draw(st.sampled_from(self.paths))
        resident, room = self.pool.match(path), self.pool.available()
        self.now += 1
        lease = self.pool.acquire(path, len(path) + extra, self.now, session=f"s{len(path) % 3}")
        if lease is None:
            assert room < len(path) + extra, "refused although everything would have fitted"
            assert self.pool.match(path) == resident and self.pool.available() == room
        else:
            assert lease.hit == resident and len(set(lease.slots)) == len(path) + extra
            self.leases.append(lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        upto = data.draw(st.integers(lease.published, len(lease.nodes)))
        self.pool.commit(lease, upto)
        assert self.pool.match(lease.nodes) >= upto

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        nodes, published = list(lease.nodes), lease.published
        self.pool.release(lease)
        assert self.pool.match(nodes) >= published

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.leases))
        room, size = self.pool.available(), len(lease.slots)
        assert self.pool.extend(lease, 1) == (room > 0)
        assert len(lease.slots) == size + (room > 0)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.pool.drop(data.draw(st.sampled_from(self.paths))[-1])

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check()
            held = [slot for lease in self.leases for slot in lease.slots[lease.published :]]
            assert len(held) == len(set(held)), "a private slot belongs to two leases"


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("seed", range(20))
def test_hits_and_residents_equal_the_reference(seed: int) -> None:
    random = np.random.default_rng(seed)
    capacity = int(random.integers(1, 20))
    pool, reference = Pool(capacity, LRU), ReferenceLRU(capacity)
    paths: list[list[int]] = [[]]
    for _ in range(60):
        path = paths[int(random.integers(len(paths)))]
        node = pool.add_node(path[-1] if path else -1)
        reference.parent[node] = path[-1] if path else -1
        paths.append([*path, node])
    for step in range(400):
        path = paths[int(random.integers(1, len(paths)))]
        expected = reference.request(path)
        lease = pool.acquire(path, min(len(path), capacity), float(step))
        assert lease is not None and lease.hit == expected
        pool.commit(lease, len(lease.slots))
        pool.release(lease)
        assert set(np.flatnonzero(pool.state.slot >= 0).tolist()) == reference.resident
