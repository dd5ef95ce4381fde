"""Ranks that change with time: the heap stays a heap, in one pool and in tiers; traits by hand."""

import numpy as np
import pytest

from kvtool.cache import aging, core
from kvtool.cache.policies import fitted
from kvtool.cache.pool import Pool
from kvtool.cache.reuse_table import (
    HIT,
    PAUSE,
    SHIFT,
    USES,
    WIDTH,
    ReuseTable,
    code_of,
    seconds_code,
    with_code,
)
from kvtool.cache.tiers import Tier, TieredPool


def random_table(seed: int) -> ReuseTable:
    random = np.random.default_rng(seed)
    tree = np.array([[USES, 1, 1, 2], [HIT, 0, 3, 4], [-1, 2, 0, 0], [-1, 0, 0, 0], [-1, 1, 0, 0]])
    return ReuseTable(tree, np.array([1.5, 4.0, 11.0]), random.random((3, 4)), False)


def in_order(pool: Pool) -> None:
    state = pool.state
    heap = state.heap[: state.control[core.HEAP]].tolist()
    for at in range(1, len(heap)):
        assert state.key[heap[(at - 1) // 2]] <= state.key[heap[at]], "a parent in the heap is worth more"


@pytest.mark.parametrize("seed", range(8))
def test_heaps_of_all_tiers_stay_in_order_through_uses_and_renewals(seed: int) -> None:
    random = np.random.default_rng(seed)
    pool = TieredPool(fitted.by_table(random_table(seed), 16), 8, host=12, disk=20)
    paths: list[list[int]] = [[]]
    for _ in range(40):
        path = paths[int(random.integers(len(paths)))]
        paths.append([*path, pool.add_node(path[-1] if path else -1)])
    paths = [path for path in paths if 0 < len(path) <= 8]
    now = 0.0
    for step in range(200):
        now += float(random.exponential(1.0))
        path = paths[int(random.integers(len(paths)))]
        lease = pool.acquire(path, len(path), now)
        assert lease is not None
        pool.take_moves()
        pool.settle(lease, len(lease.loads))
        pool.commit(lease, len(path))
        pool.release(lease, int(random.integers(1000)))
        if step % 50 == 49:
            aging.reclassify(pool.device.state, now)
        for tier in (pool.device, *pool.lower.values()):
            tier.check()
        in_order(pool.device)
    for tier in (pool.device, pool.lower[Tier.HOST], pool.lower[Tier.DISK]):
        aging.renew(tier.state, now)
        in_order(tier)
        tier.check()


def test_a_renewal_values_every_resident_block_at_its_age() -> None:
    table = random_table(3)
    pool = Pool(4, fitted.by_table(table, 16))
    old, young = pool.add_node(-1), pool.add_node(-1)
    for node, now in ((old, 0.0), (young, 3.0)):
        lease = pool.acquire([node], 1, now)
        assert lease is not None
        pool.commit(lease, 1)
        pool.release(lease)
    aging.renew(pool.state, 5.0)
    assert pool.state.key[[old, young]].tolist() == [table.worth[0, 2], table.worth[0, 1]]


def test_the_worth_of_several_trees_is_their_mean() -> None:
    """Both trees' numbers lie side by side in the word: first use is class 0 and 3, the second 1 and 2."""
    tree = np.array(
        [[USES, 0, 1, 2], [-1, 0, 0, 0], [-1, 1, 0, 0], [HIT, 0, 4, 5], [-1, 3, 0, 0], [-1, 2, 0, 0]]
    )
    worth = np.array([[1.0], [2.0], [10.0], [20.0]])
    table = ReuseTable(tree, np.zeros(0), worth, False, (0, 3))
    assert table.first_classes == [0, 2]
    pool = Pool(2, fitted.by_table(table, 16))
    node = pool.add_node(-1)
    for now, expected in ((0.0, (1.0 + 20.0) / 2), (1.0, (2.0 + 10.0) / 2)):
        lease = pool.acquire([node], 1, now)
        assert lease is not None
        pool.commit(lease, 1)
        pool.release(lease)
        assert pool.state.key[node] == expected


def test_appended_blocks_take_over_what_is_known_of_their_request() -> None:
    pool = Pool(4, fitted.by_table(random_table(0), 128))
    first = pool.add_node(-1)
    lease = pool.acquire([first], 1, 0.0)
    assert lease is not None
    child = pool.add_node(first)
    pool.touch([child], 2.0)
    same = (1 << SHIFT[USES]) - 1  # turn, gap, prompt, output, new lie below
    assert pool.state.traits[child] & same == pool.state.traits[first] & same != 0


def test_codes_are_packed_side_by_side_and_saturate() -> None:
    word = 0
    for trait, width in enumerate(WIDTH):
        word = with_code(word, trait, (1 << width) + 5)
    assert word == (1 << sum(WIDTH)) - 1
    assert code_of(with_code(word, PAUSE, 3), PAUSE) == 3
    assert [seconds_code(x) for x in (0.0, 4.9, 5.1, 7.2, 30.0, 100.0)] == [1, 1, 2, 3, 7, 10]
    assert [seconds_code(x) for x in (1e200, float("inf"), float("nan"))] == [64, 64, 1], "it ends"
