"""The prewarm plan against brute force: prefix-closed, within budget, best first, honestly forecast."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvtool.analysis.build import build_workload
from kvtool.analysis.flops import Prefill
from kvtool.analysis.hit_rates import hit_rates
from kvtool.analysis.plan import TIERS, Plan, PlanConfig, Planner, make_plan
from kvtool.analysis.workload import Workload
from kvtool.errors import KvtoolError
from kvtool.requests import BlockIds, Request, Source
from tests.analysis.test_plan_choice import bests, closed_sets, total


class Ids:
    """Stands in for an encoder: prompts are token ids already."""

    fingerprint = "ids"

    def encode(self, requests):
        return [each.token_ids for each in requests]


def workload_of(prompts, block_size=2, tenants=None, models=None) -> Workload:
    return build_workload(
        [
            Request(
                id=str(number),
                source=Source("log", number + 1),
                tenant=tenants[number] if tenants else None,
                model=models[number] if models else None,
                token_ids=np.array(tokens, np.uint32),
            )
            for number, tokens in enumerate(prompts)
        ],
        Ids(),
        block_size,
    )


def ten_bytes(depth: int) -> int:
    return 10


def paths(plan: Plan) -> list[tuple[int, ...]]:
    """The whole prefix of every row."""
    found: list[tuple[int, ...]] = []
    for parent, tokens in zip(plan.parent.tolist(), plan.tokens.tolist(), strict=True):
        found.append((found[parent] if parent >= 0 else ()) + tuple(tokens))
    return found


PROMPTS = st.lists(st.lists(st.integers(0, 1), max_size=14), min_size=1, max_size=20)


FLAT = Prefill(linear=1.0, attention=0.0)
"""All blocks cost the same to compute."""


@given(PROMPTS, st.integers(1, 3), st.one_of(st.none(), st.integers(0, 100)))
def test_rows_hits_and_forecast_are_those_of_plain_counting(prompts, min_requests, budget):
    config = PlanConfig({} if budget is None else {"disk": budget}, min_requests)
    plan = make_plan(workload_of(prompts), config, ten_bytes, 1000, prefill=FLAT)
    usable = [
        [tuple(tokens[:end]) for end in range(2, len(tokens), 2)]  # the last token is always computed
        for tokens in prompts
    ]
    counts: dict[tuple[int, ...], int] = {}
    for prefixes in usable:
        for prefix in prefixes:
            counts[prefix] = counts.get(prefix, 0) + 1
    eligible = {prefix for prefix, count in counts.items() if count >= min_requests}
    chosen = paths(plan)
    assert len(set(chosen)) == len(chosen) and set(chosen) <= eligible
    assert plan.hits.tolist() == [counts[path] for path in chosen]
    if budget is None:
        assert set(chosen) == eligible
    else:
        assert len(chosen) == min(len(eligible), budget // 10)
        left = [counts[path] for path in eligible - set(chosen) if path[:-2] in {(), *chosen}]
        assert min([counts[path] for path in chosen], default=99) >= max(left, default=0)
    total = sum(map(len, prompts))
    served = sum(len(prefixes[: sum(p in set(chosen) for p in prefixes)]) * 2 for prefixes in usable)
    assert plan.forecast.hit_rate == (pytest.approx(served / total) if total else 0)
    seen: set[tuple[int, ...]] = set(chosen)
    warm = 0
    for tokens, prefixes in zip(prompts, usable, strict=True):
        warm += 2 * sum(prefix in seen for prefix in prefixes)
        seen.update(tuple(tokens[:end]) for end in range(2, len(tokens) + 1, 2))
    assert plan.forecast.hit_rate_cached == (pytest.approx(warm / total) if total else 0)
    assert plan.forecast.tokens_unshared == 2 * sum(counts[path] for path in chosen)
    assert plan.forecast.flops_saved == 2 * sum(counts[path] for path in chosen)
    assert plan.forecast.hit_rate_expected is None and plan.expected.tolist() == plan.hits.tolist()


@given(PROMPTS)
def test_the_cold_rate_is_the_analysis_own(prompts):
    workload = workload_of(prompts)
    plan = make_plan(workload, PlanConfig(), ten_bytes, 1000)
    assert plan.forecast.hit_rate_cold == pytest.approx(hit_rates(workload).tokens)


@given(PROMPTS)
def test_split_tokens_are_what_a_token_trie_would_save(prompts):
    plan = make_plan(workload_of(prompts, block_size=3), PlanConfig(min_requests=1), ten_bytes, 1000)
    distinct = {path[:end] for path in paths(plan) for end in range(1, len(path) + 1)}
    assert plan.forecast.split_tokens == len(plan) * 3 - len(distinct)
    assert plan.forecast.tokens == len(distinct)


def test_storage_order_keeps_chains_together_and_the_most_used_first():
    hot, cold = [1, 1, 2, 2, 3, 3], [1, 1, 9, 9, 8, 8]
    other = [5, 5, 6, 6]
    prompts = [[*cold, 0]] * 2 + [[*hot, 0]] * 3 + [[*other, 0]] * 4
    plan = make_plan(workload_of(prompts), PlanConfig(), ten_bytes, 1000)
    assert plan.tokens[:, 0].tolist() == [1, 2, 3, 9, 8, 5, 6]
    assert plan.parent.tolist() == [-1, 0, 1, 0, 3, -1, 5]
    assert plan.depth.tolist() == [0, 1, 2, 1, 2, 0, 1]
    assert plan.hits.tolist() == [5, 3, 3, 2, 2, 4, 4]


def test_a_prompt_that_ends_with_a_block_does_not_use_it():
    plan = make_plan(workload_of([[1, 1, 2, 2], [1, 1, 2, 2]]), PlanConfig(), ten_bytes, 1000)
    assert plan.tokens.tolist() == [[1, 1]]
    assert plan.forecast.hit_rate == 0.5


def test_bytes_count_against_the_budget_and_dearer_blocks_rank_lower():
    prompts = [[1, 1, 2, 2, 0]] * 3 + [[5, 5, 0]] * 2
    sizes = [30, 10]
    plan = make_plan(workload_of(prompts), PlanConfig({"disk": 69}), sizes.__getitem__, 1000)
    assert plan.tokens[:, 0].tolist() == [1, 2] and plan.bytes.tolist() == [30, 10]
    assert plan.forecast.over_budget == 1
    plan = make_plan(workload_of(prompts), PlanConfig({"disk": 70}), sizes.__getitem__, 1000)
    assert plan.tokens[:, 0].tolist() == [1, 2, 5]


def test_a_dear_block_below_cheap_ones_is_worth_its_chain():
    """Attention makes depth dear: a long chain used twice beats two first blocks used thrice."""
    chain = [1] * 10
    prompts = [[*chain, 0]] * 2 + [[5, 5, 0]] * 3 + [[6, 6, 0]] * 3
    flat = make_plan(workload_of(prompts), PlanConfig({"disk": 50}), ten_bytes, 1000, prefill=FLAT)
    assert sorted(flat.tokens[:, 0].tolist()) == [1, 1, 1, 5, 6]
    steep = Prefill(linear=0.0, attention=1.0)  # blocks cost 1, 5, 9, 13, 17
    plan = make_plan(workload_of(prompts), PlanConfig({"disk": 50}), ten_bytes, 1000, prefill=steep)
    assert plan.tokens[:, 0].tolist() == [1] * 5
    assert plan.flops.tolist() == [1, 5, 9, 13, 17]
    assert plan.forecast.flops_saved == 2 * 45


def test_a_window_keeps_depth_from_growing_dear():
    windowed = Prefill(linear=1.0, attention=0.0, windows=((1.0, 3),))
    plan = make_plan(workload_of([[1] * 9] * 2), PlanConfig(), ten_bytes, 1000, prefill=windowed)
    visible = [[0, 1], [2, 3], [3, 3], [3, 3]]  # earlier tokens that each token attends to
    assert plan.flops.tolist() == [2 + sum(block) for block in visible]


def test_tenants_have_budgets_of_their_own():
    prompts = [[1, 1, 2, 2, 3, 3, 0]] * 2 + [[1, 1, 2, 2, 3, 3, 0]] * 3
    tenants = ["x", "x", "y", "y", "y"]

    def blocks(**tenant_budgets: int) -> dict[str, int]:
        config = PlanConfig(
            {"disk": 40}, tenants={name.strip("_"): size for name, size in tenant_budgets.items()}
        )
        plan = make_plan(workload_of(prompts, tenants=tenants), config, ten_bytes, 1000, prefill=FLAT)
        names = [plan.tenants[at] for at in plan.tenant]
        return {name: names.count(name) for name in set(names)}

    assert blocks() == {"x": 1, "y": 3}
    assert blocks(_=20) == {"x": 2, "y": 2}
    assert blocks(_=20, y=10) == {"x": 2, "y": 1}
    with pytest.raises(KvtoolError, match="no tenant 'z'"):
        blocks(z=10)


def test_the_fastest_tier_takes_the_densest_and_parents_are_no_slower():
    prompts = [[1, 1, 2, 2, 3, 3, 0]] * 2 + [[1, 1, 7, 7, 0]] * 3
    config = PlanConfig({"device": 16, "host": 10, "disk": 99})
    plan = make_plan(workload_of(prompts), config, ten_bytes, 1000, prefill=FLAT, memory_bytes=8)
    tiers = dict(zip(plan.tokens[:, 0].tolist(), [TIERS[at] for at in plan.tier], strict=True))
    assert tiers == {1: "device", 7: "device", 2: "host", 3: "disk"}


def test_models_named_in_the_log_share_and_tenants_do_not():
    prompts = [[1, 1, 0]] * 4
    shared = make_plan(workload_of(prompts, models=["a", "a", "b", "b"]), PlanConfig(), ten_bytes, 1000)
    assert shared.hits.tolist() == [4] and list(shared.tenants) == [""]
    apart = make_plan(workload_of(prompts, tenants=["x", "y", "y", "y"]), PlanConfig(), ten_bytes, 1000)
    assert apart.hits.tolist() == [3] and [apart.tenants[at] for at in apart.tenant] == ["y"]


def test_blocks_beyond_the_models_positions_are_left_out_and_counted():
    plan = make_plan(workload_of([[1] * 11] * 2), PlanConfig(), ten_bytes, 7)
    assert plan.depth.tolist() == [0, 1, 2]
    assert plan.forecast.too_deep == 2


def test_a_block_id_trace_is_refused():
    ids = BlockIds(np.array([1, 2]), 16, 32)
    workload = build_workload([Request(id="r", source=Source("log", 1), block_ids=ids)], None)
    with pytest.raises(KvtoolError, match="block ids, not tokens"):
        make_plan(workload, PlanConfig(), ten_bytes, 1000)


def test_an_empty_log_gives_an_empty_plan():
    plan = make_plan(workload_of([[1]]), PlanConfig(), ten_bytes, 1000)
    assert len(plan) == 0 and plan.forecast.hit_rate == 0


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 1), max_size=10), min_size=1, max_size=8), st.integers(0, 40), st.data()
)
def test_a_plan_made_again_with_measured_bytes_is_as_good_as_brute_force(prompts, budget, data) -> None:
    """A first plan takes every block for one byte; then each has the bytes that were measured."""
    planner = Planner(workload_of(prompts), 1000, prefill=FLAT)
    limits = PlanConfig({"disk": budget}, min_requests=1)
    first = planner.plan(limits, lambda depth: 1)
    assume(0 < len(first) <= 9)
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=len(first), max_size=len(first)))
    plan = planner.plan(limits, lambda depth: 1, replace(first, bytes=np.array(sizes)))
    row_of = {node: row for row, node in enumerate(first.node.tolist())}
    mine = [row_of[node] for node in plan.node.tolist()]
    assert plan.bytes.tolist() == [sizes[row] for row in mine] and total(mine, sizes) <= budget
    value = (first.expected * first.flops).tolist()
    parent = first.parent.tolist()
    assert all(parent[row] < 0 or parent[row] in mine for row in mine)
    every = [(total(some, sizes), total(some, value)) for some in closed_sets(parent)]
    best, hull = bests(every)
    reached = min(budget, len(best) - 1)
    floor = max((best[low] for low in hull if low <= reached), default=0)
    assert floor <= total(mine, value) <= best[reached]
    open_rows = [row for row in row_of.values() if row not in mine and parent[row] in (-1, *mine)]
    assert all(sizes[row] > budget - total(mine, sizes) for row in open_rows), "what is left holds no block"
    counted = plan.forecast
    assert counted.over_budget == len(planner.plan(PlanConfig(min_requests=1), ten_bytes)) - len(plan)
