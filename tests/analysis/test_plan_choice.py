"""The choice under a budget against brute force over all prefix-closed sets of small forests."""

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.analysis.plan_choice import choose


@st.composite
def forests(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """(parent, value, size) of up to nine nodes; some are worth nothing."""
    count = draw(st.integers(1, 9))
    parent = [draw(st.integers(-1, node - 1)) for node in range(count)]
    value = [draw(st.integers(0, 12)) for _ in range(count)]
    size = [draw(st.integers(1, 4)) for _ in range(count)]
    return parent, value, size


def taken(parent, value, size, budget, able=None, owner=None, quotas=(np.inf,)) -> set[int]:
    count = len(parent)
    depth: list[int] = []
    for node in range(count):
        depth.append(0 if parent[node] < 0 else depth[parent[node]] + 1)
    found = choose(
        np.array(parent, np.int64),
        np.array(depth, np.int32),
        np.array(value, np.float64),
        np.array(size, np.int64),
        np.ones(count, np.bool_) if able is None else np.array(able),
        budget,
        np.array(owner or [0] * count, np.int32),
        np.array(quotas, np.float64),
    )
    return set(np.flatnonzero(found).tolist())


def closed_sets(parent: list[int]) -> list[set[int]]:
    """Every set that has the parent of each of its nodes."""
    every = (
        set(some) for count in range(len(parent) + 1) for some in combinations(range(len(parent)), count)
    )
    return [some for some in every if all(parent[node] < 0 or parent[node] in some for node in some)]


def total(nodes, of) -> int:
    return sum(of[node] for node in nodes)


def bests(every: list[tuple[int, float]]) -> tuple[list[float], list[int]]:
    """Of sets as (size, value): the best value at each budget, and the budgets at which the best set lies on
    the upper hull of all."""
    budgets = range(max(weight for weight, _ in every) + 1)
    best = [max(worth for weight, worth in every if weight <= budget) for budget in budgets]
    hull = [
        budget
        for budget in budgets
        if all(
            best[budget] * (right - left) > best[left] * (right - budget) + best[right] * (budget - left)
            for left in range(budget)
            for right in range(budget + 1, len(budgets))
        )
    ]
    return best, hull


@settings(max_examples=200)
@given(forests())
def test_as_good_as_brute_force_where_groups_end_and_never_worse_than_there(forest):
    """Between two budgets of the hull the choice is at least as good as at the lower one."""
    parent, value, size = forest
    every = [(total(some, size), total(some, value)) for some in closed_sets(parent)]
    best, hull = bests(every)
    budgets = range(len(best))
    for budget in budgets:
        mine = taken(parent, value, size, budget)
        assert all(parent[node] < 0 or parent[node] in mine for node in mine)
        assert total(mine, size) <= budget
        floor = max((best[low] for low in hull if low <= budget), default=0)
        assert floor <= total(mine, value) <= best[budget]
        if budget in hull:
            assert total(mine, value) == best[budget]


def test_a_worthless_parent_is_taken_for_its_child_and_not_for_itself():
    parent, value, size = [-1, 0, -1], [0, 9, 4], [1, 1, 1]
    assert taken(parent, value, size, 2) == {0, 1}
    assert taken(parent, value, size, 1) == {2}
    assert taken(parent, [0, 0, 4], size, 3) == {2}
    assert taken(parent, [-5, 9, 4], size, 3) == {0, 1, 2}
    assert taken(parent, [-9, 9, 4], size, 3) == {2}


def test_what_does_not_fit_makes_room_for_what_does():
    parent, value, size = [-1, -1, 1], [50, 8, 1], [5, 2, 2]
    assert taken(parent, value, size, 4) == {1, 2}
    assert taken(parent, value, size, 5) == {0}


def test_nodes_that_are_not_able_are_left_and_owners_have_limits():
    parent, value, size = [-1, 0, -1], [5, 5, 4], [1, 1, 1]
    assert taken(parent, value, size, 9, able=[True, False, True]) == {0, 2}
    assert taken(parent, value, size, 9, owner=[0, 0, 1], quotas=(1, 9)) == {0, 2}
    assert taken(parent, value, size, 9, owner=[0, 0, 1], quotas=(0, 9)) == {2}
