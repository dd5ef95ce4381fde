"""fitted: without a model it is cost; with one, equal to a plain simulation of classes that age."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.analysis.replay import replay
from kvtool.cache.policies import POLICIES, fitted
from kvtool.cache.pool import Pool
from kvtool.cache.reuse_table import DEPTH, END, OUTPUT, TRAITS, USES, ReuseTable

PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), max_size=25)

TABLE = ReuseTable(
    tree=np.array([[USES, 0, 1, 2], [DEPTH, 1, 3, 4], [-1, 2, 0, 0], [-1, 0, 0, 0], [-1, 1, 0, 0]]),
    edges=np.array([2.0, 6.0]),
    worth=np.array([[0.5, 0.2, 0.01], [0.1, 0.3, 0.02], [0.4, 0.05, 0.25]]),
    partial_ends=False,
)
"""Class 0: first use, first two blocks; 1: first use, deeper; 2: used before. Worth at ages <2, <6, more."""


class PlainAging:
    """Sets and sorts: a request at a time, one second apart; ranks renewed by the rule of `aging`."""

    def __init__(self, capacity, parent, depth):
        self.capacity, self.parent, self.depth = capacity, parent, depth
        self.uses, self.last, self.kind, self.key, self.turn = {}, {}, {}, {}, {}
        self.resident, self.evicted, self.touched, self.now = set(), [], 0, 0

    def worth(self, node):
        age = self.now - self.last[node]
        return TABLE.worth[self.kind[node]][0 if age < 2 else 1 if age < 6 else 2]

    def serve(self, path):
        self.touched += len(path)
        if self.touched * 32 >= self.capacity:
            self.touched = 0
            for node in self.resident:
                self.key[node] = self.worth(node)
        before = {node: self.uses.get(node, 0) for node in path}
        for node in path:
            self.uses[node] = before[node] + 1
            self.last[node] = self.turn[node] = self.now
            self.key[node] = math.inf
        hit = next((i for i, node in enumerate(path) if node not in self.resident), len(path))
        held = set(path[:hit])
        for node in path[hit:]:
            if len(self.resident) == self.capacity and not self.evict(held):
                break
            self.resident.add(node)
            held.add(node)
        for node in path:
            self.kind[node] = 2 if before[node] else 0 if self.depth[node] <= 1 else 1
            self.key[node] = self.worth(node)
        self.now += 1
        return hit

    def evict(self, held):
        parents = {self.parent[node] for node in self.resident}
        leaves = [node for node in self.resident if node not in held and node not in parents]
        if not leaves:
            return False
        victim = min(leaves, key=lambda n: (self.key[n], self.turn[n], -self.depth[n], n))
        self.resident.remove(victim)
        self.evicted.append(victim)
        return True


@settings(deadline=None, max_examples=60)
@given(PATHS, st.integers(1, 90))
def test_replay_and_pool_rank_as_the_plain_cache_does(workload, paths, capacity):
    log = workload(paths)
    policy = fitted.by_table(TABLE, log.block_size)
    plain = PlainAging(capacity, log.parent.tolist(), log.depth.tolist())
    pool = Pool(capacity, policy)
    for parent in log.parent.tolist():
        pool.add_node(parent)
    expected, evicted = [], []
    for request in range(log.requests):
        path = log.nodes[log.offsets[request] : log.offsets[request + 1]].tolist()
        expected.append(plain.serve(path))
        if len(path) <= capacity:
            lease = pool.acquire(path, len(path), float(request))
            assert lease is not None
            pool.commit(lease, len(path))
            evicted += [node for node, _ in lease.evicted]
            pool.release(lease)
            pool.check()
    assert replay(log, policy, capacity).tolist() == expected
    if all(len(path) <= capacity for path in paths):
        assert evicted == plain.evicted


def test_without_a_model_it_ranks_as_cost(sample):
    capacity = round(0.2 * sample.distinct_blocks)
    assert fitted.by_table(None, 512) is POLICIES.load("fitted")
    by_cost = replay(sample, POLICIES.load("cost"), capacity)
    assert (replay(sample, POLICIES.load("fitted"), capacity) == by_cost).all()


def test_a_block_can_become_worth_more_while_it_waits():
    """The deep block of the old chain (0.3 from 2 s on) outlives the deep one (0.1) of the fresh chain;
    then the old chain is at its second block (0.2 by now), the fresh one at its second (0.5)."""
    pool = Pool(7, fitted.by_table(TABLE, 16))
    first, second, third = [], [], []
    for path in (first, second, third):
        for _ in range(3):
            path.append(pool.add_node(path[-1] if path else -1))
    serve(pool, first, 0.0)
    serve(pool, second, 3.0)
    assert serve(pool, third, 3.5) == [second[2], first[2]]
    assert pool.state.key[first[1]] == 0.2 and pool.state.key[second[1]] == 0.5


def test_output_length_counts_when_the_request_ends():
    tree = np.array([[OUTPUT, 4, 1, 2], [-1, 0, 0, 0], [-1, 1, 0, 0]])
    long_stays = ReuseTable(tree, np.zeros(0), np.array([[0.1], [0.2]]), False)
    pool = Pool(2, fitted.by_table(long_stays, 16))
    short, long, third = (pool.add_node(-1) for _ in range(3))
    serve(pool, [long], 0.0, 500)
    serve(pool, [short], 1.0, 20)
    assert serve(pool, [third], 2.0, 400) == [short]
    pool.check()


def test_partial_last_blocks_of_the_log_are_none_of_the_pools():
    """Fitted where END 0 is a partial block: a pool without them has END 1 at its last full block."""
    tree = np.array([[END, 0, 1, 2], [-1, 0, 0, 0], [-1, 1, 0, 0]])
    table = ReuseTable(tree, np.zeros(0), np.array([[0.0], [1.0]]), partial_ends=True)
    for partial, worth in ((False, 1.0), (True, 0.0)):
        pool = Pool(2, fitted.by_table(table, 16, partial_ends=partial))
        node = pool.add_node(-1)
        serve(pool, [node], 0.0)
        assert pool.state.key[node] == worth


def test_rebuild_cost_raises_the_worth_of_deep_blocks():
    table = ReuseTable(np.array([[-1, 0, 0, 0]]), np.zeros(0), np.ones((1, 1)), False)
    pool = Pool(3, fitted.by_table(table, 16, rebuild=0.5))
    path = [pool.add_node(-1)]
    path.append(pool.add_node(path[0]))
    serve(pool, path, 0.0)
    assert pool.state.key[path].tolist() == [1.0, 1.5]


def test_parameters_say_where_their_tables_are():
    parameters = TABLE.parameters(16)
    assert len(parameters) == 6 + 2 + 4 * 5 + 2 + 9
    assert len(TRAITS) == 10
    assert POLICIES.load("fitted").ages is False


def serve(pool, path, now, output_tokens=-1):
    lease = pool.acquire(path, len(path), now)
    assert lease is not None
    pool.commit(lease, len(path))
    evicted = [node for node, _ in lease.evicted]
    pool.release(lease, output_tokens)
    return evicted
