"""Advice: the order in which to try it, evidence, and gains that a simulation of the advice confirms."""

import numpy as np
import pytest

from kvtool.analysis.analyze import sweep
from kvtool.analysis.build import build_workload
from kvtool.analysis.runs import runs_of
from kvtool.analysis.simulate import SimulateConfig, Simulation
from kvtool.analysis.simulation_advice import Known
from kvtool.requests import BlockIds, Request, Source


@pytest.fixture(scope="module")
def workload():
    """Thirty sessions of four turns, and between any two of their requests one that is never seen again."""
    random = np.random.default_rng(5)
    names, requests = {}, []
    turns = random.permutation(np.repeat(np.arange(30), 4)).tolist()
    for row, session in enumerate(turns):
        turn = turns[:row].count(session)
        for path in (
            ["system", *((session, n) for n in range(3 * (turn + 1)))],
            [("once", row, n) for n in range(8)],
        ):
            ids = [names.setdefault(tuple(path[: i + 1]), len(names)) for i in range(len(path))]
            requests.append(
                Request(
                    id="",
                    source=Source("t", len(requests)),
                    session=str(session) if path[0] == "system" else None,
                    block_ids=BlockIds(np.array(ids), 4, 4 * len(ids)),
                )
            )
    return build_workload(requests, None)


def run(workload, known=None, **options):
    return Simulation(workload, SimulateConfig(**options), known=known).run()


def piece(document, code):
    return next((one for one in document["advice"] if one["code"] == code), None)


def test_all_pieces_in_order_each_with_a_gain(workload):
    known = Known(
        [{"block_size": size, "tokens": 1 / size, "distinct_blocks": 9} for size in (2, 4)],
        [{"code": "KV101", "hit_rate_if_fixed": 0.4}, {"code": "KV201", "hit_rate_if_fixed": 0.605}],
        0.2,
        0.6,
    )
    policies = ("lru", "lfu", "cost", "belady")
    document = run(workload, known, capacities=("8%",), policies=policies, replicas=3, routing="random")
    codes = [one["code"] for one in document["advice"]]
    assert codes[:3] == ["routing", "block-size", "capacity"] and codes[-1] == "prompts"
    assert all(one["evidence"]["gain"] >= 0.01 for one in document["advice"])
    prompts = document["advice"][-1]
    assert prompts["evidence"]["findings"] == {"KV201": 0.405, "KV101": 0.2}
    assert "KV201 alone gains 40.5%" in prompts["text"] and "all safe fixes gain 40.0%" in prompts["text"]


def test_routing_and_capacity_gain_what_they_say(workload):
    options = {"policies": ("lru",), "replicas": 3}
    document = run(workload, capacities=("60%",), routing="random", **options)
    evidence = piece(document, "routing")["evidence"]
    best = max(evidence["by_routing"], key=evidence["by_routing"].get)
    routed = run(workload, capacities=("60%",), routing=best, **options)["rows"][0]["tokens"]
    assert evidence["gain"] == pytest.approx(routed - document["rows"][0]["tokens"], abs=2e-6)
    assert (
        evidence["single_cache"] == run(workload, capacities=("60%",), policies=("lru",))["rows"][0]["tokens"]
    )

    small = run(workload, capacities=("20",), policies=("lru",))
    evidence = piece(small, "capacity")["evidence"]
    grown = run(workload, capacities=(str(evidence["blocks"]["90%"]),), policies=("lru",))["rows"][0][
        "tokens"
    ]
    assert grown == evidence["tokens"]["90%"] >= 0.9 * small["unbounded"]["tokens"]
    assert evidence["gain"] == pytest.approx(grown - small["rows"][0]["tokens"], abs=2e-6)
    said = piece(small, "capacity")["text"]
    assert "no times" in said and "Replicas need more" not in said
    several = piece(run(workload, capacities=("20",), policies=("lru",), replicas=3), "capacity")["text"]
    assert "in one cache" in several and "Replicas need more" in several
    fewer = str(evidence["blocks"]["90%"] - 1)
    assert run(workload, capacities=(fewer,), policies=("lru",))["rows"][0]["tokens"] < grown


def test_a_policy_is_named_where_it_gains_and_the_optimum_stands_beside(workload):
    document = run(workload, capacities=("10%",), policies=("lru", "lfu", "belady"))
    rates = {row["policy"]: row["tokens"] for row in document["rows"]}
    advice = piece(document, "policy")
    assert rates["lfu"] > rates["lru"] + 0.01 and advice["evidence"] == {
        "by_policy": {"lru": rates["lru"], "lfu": rates["lfu"]},
        "optimum": rates["belady"],
        "gain": round(rates["lfu"] - rates["lru"], 6),
    }
    assert piece(run(workload, capacities=("10%",), policies=("lru",)), "policy") is None


def test_block_size_advice_is_that_of_the_sweep(workload):
    rows = sweep(workload)
    assert piece(run(workload, Known(rows)), "block-size") is None, "the trace's own blocks are the smallest"
    coarse = runs_of(workload).coarser(16).unfolded()
    advice = piece(run(coarse, Known(rows)), "block-size")
    own, best = rows[2]["tokens"], rows[0]["tokens"]
    assert (rows[2]["block_size"], rows[0]["block_size"]) == (16, 4)
    assert advice["evidence"]["gain"] == round(best - own, 6) >= 0.01


def test_prompts_are_not_blamed_without_a_reason(workload):
    assert run(workload)["unbounded"]["tokens"] >= 0.3
    assert piece(run(workload), "prompts") is None
    poor = workload.select(0, 20)
    advice = piece(run(poor), "prompts")
    assert run(poor)["unbounded"]["tokens"] < 0.3
    assert advice["evidence"] == {"unbounded": run(poor)["unbounded"]["tokens"], "findings": {}, "gain": None}


def test_another_weight_of_cost_is_named_where_it_gains(workload):
    """Where most blocks are asked for once, frequency gains; what is promised is what such a run gives."""
    document = run(workload, capacities=("12%",), policies=("lru",))
    advice = piece(document, "policy-weight")
    assert advice is not None
    rates = advice["evidence"]["by_weight"]
    best = max(rates, key=rates.get)
    name, value = best.split("=")
    row = run(workload, capacities=("12%",), policies=("cost",), weights=((name, float(value)),))["rows"][0]
    assert row["tokens"] == rates[best] and f"--cost-weight {best}" in advice["text"]
    assert advice["evidence"]["gain"] == pytest.approx(rates[best] - document["rows"][0]["tokens"], abs=2e-6)
    assert piece(run(workload, capacities=("100%",), policies=("lru",)), "policy-weight") is None
