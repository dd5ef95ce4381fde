"""simulate: rows, tiers, training part, and advice that names a gain which its own rows have."""

import numpy as np
import pytest

from kvtool.analysis.belady import belady
from kvtool.analysis.build import build_workload
from kvtool.analysis.curve import LruCurve
from kvtool.analysis.flops import TYPICAL
from kvtool.analysis.rates import rates_of
from kvtool.analysis.simulate import SimulateConfig, Simulation
from kvtool.analysis.timed import TimedConfig
from kvtool.errors import KvtoolError
from kvtool.requests import BlockIds, Request, Source


@pytest.fixture(scope="module")
def workload():
    """Forty sessions of four turns, interleaved at random."""
    random = np.random.default_rng(11)
    names, requests = {}, []
    turns = random.permutation(np.repeat(np.arange(40), 4)).tolist()
    for row, session in enumerate(turns):
        path = ["system", *((session, n) for n in range(3 * (turns[:row].count(session) + 1)))]
        ids = [names.setdefault(tuple(path[: i + 1]), len(names)) for i in range(len(path))]
        requests.append(
            Request(
                id="",
                source=Source("t", row),
                session=str(session),
                block_ids=BlockIds(np.array(ids), 4, 4 * len(ids)),
            )
        )
    return build_workload(requests, None)


def run(workload, **options):
    return Simulation(workload, SimulateConfig(**options)).run()


def test_rows_are_ordered_and_complete(workload):
    document = run(workload, capacities=("50%", "10"), policies=("lru", "belady", "lru"))
    half = workload.distinct_blocks // 2
    assert [(row["policy"], row["capacity_blocks"]) for row in document["rows"]] == [
        *(("lru", 10), ("belady", 10)),
        *(("lru", half), ("belady", half)),
    ]
    row = document["rows"][0]
    assert {
        "tokens",
        "tokens_full",
        "blocks",
        "request_mean",
        "rebuild_flops_saved",
        "max_load_over_mean",
    } < set(row)
    assert (row["replicas"], row["routing"]) == (1, None)
    assert row["tokens"] == round(LruCurve(workload).at(10).tokens, 6)
    assert document["unbounded"]["tokens"] == round(LruCurve(workload).at(10**6).tokens, 6)


def test_all_policies_lie_between_nothing_and_belady(workload):
    rows = run(workload, capacities=("20%",), policies=("all",))["rows"]
    best = next(row["blocks"] for row in rows if row["policy"] == "belady")
    assert len(rows) >= 6
    assert all(0 < row["blocks"] <= best for row in rows)


def test_the_training_part_warms_and_is_not_counted(workload):
    row = run(workload, capacities=("30%",), policies=("belady",), train_fraction=0.5)["rows"][0]
    matched = belady(workload, round(0.3 * workload.distinct_blocks))
    assert row["hit_blocks"] == matched[80:].sum()
    assert row["tokens"] == round(rates_of(workload, matched, TYPICAL, slice(80, None)).tokens, 6)


def test_tiers_are_sections_of_the_lru_curve(workload):
    sizes = (("device", "20"), ("host", "80"), ("disk", "10000"))
    rows = run(workload, policies=("lru", "cost", "belady"), tiers=sizes)["tiers"]
    assert [(row["policy"], row["tier"]) for row in rows] == [
        (policy, tier) for policy in ("lru", "cost") for tier, _ in sizes
    ]
    tiers = rows[:3]
    curve = LruCurve(workload)
    assert [tier["tokens"] for tier in tiers] == [
        round(curve.at(20).tokens, 6),
        round(curve.at(100).tokens - curve.at(20).tokens, 6),
        round(curve.at(10_100).tokens - curve.at(100).tokens, 6),
    ]


def test_advice_names_routing_first_and_its_gain_is_real(workload):
    document = run(workload, capacities=("200%",), policies=("lru",), replicas=4, routing="random")
    piece = document["advice"][0]
    assert piece["code"] == "routing"
    best = max(piece["evidence"]["by_routing"], key=piece["evidence"]["by_routing"].get)
    routed = run(workload, capacities=("200%",), policies=("lru",), replicas=4, routing=best)
    assert routed["rows"][0]["tokens"] == piece["evidence"]["by_routing"][best]
    assert piece["evidence"]["present"] == document["rows"][0]["tokens"] < routed["rows"][0]["tokens"]
    assert not any(piece["code"] == "routing" for piece in routed["advice"])


def test_capacity_advice_reaches_nine_tenths(workload):
    document = run(workload, capacities=("10",), policies=("lru",))
    piece = next(piece for piece in document["advice"] if piece["code"] == "capacity")
    blocks = piece["evidence"]["blocks"]["90%"]
    enough = run(workload, capacities=(str(blocks),), policies=("lru",))["rows"][0]["tokens"]
    assert enough >= 0.9 * document["unbounded"]["tokens"]


def test_overlapping_requests_have_their_own_columns_and_limits(workload):
    options = {"capacities": ("30%",), "policies": ("lru", "belady")}
    plain = run(workload, **options)["rows"][0]
    timed = run(workload, **options, timed=TimedConfig(prefill_rate=20.0))["rows"]
    assert timed[0]["most_held_blocks"] > 0 and timed[0]["bypassed_requests"] == 0
    assert timed[0]["blocks"] < plain["blocks"], "a session's next turn comes before its last one is computed"
    assert "most_held_blocks" not in timed[1]
    with pytest.raises(KvtoolError, match="one replica"):
        run(workload, **options, timed=TimedConfig(), replicas=2)


@pytest.mark.parametrize(
    "options",
    [
        {"ttl": 50.0},
        {"replicas": 3, "routing": "sticky"},
        {"timed": TimedConfig(prefill_rate=100.0)},
        {"admit": 2},
        {"tiers": (("device", "20"), ("host", "80"))},
    ],
    ids=lambda options: next(iter(options)),
)
def test_fitted_learns_in_every_setting(workload, options):
    """With a model it differs from its fallback, which is what `cost` does."""
    settings = {"capacities": ("15%",), "policies": ("fitted", "cost"), "train_fraction": 0.5, **options}
    document = run(workload, **settings)
    rows = document["tiers"][::2] if "tiers" in options else document["rows"]
    fitted, cost = rows[0]["hit_blocks"], rows[1]["hit_blocks"]
    assert fitted > 0 and fitted != cost


def test_weights_are_those_of_cost_and_of_nothing_else(workload):
    options = {"capacities": ("10%",), "policies": ("cost", "lru")}
    plain = run(workload, **options)["rows"]
    fast = run(workload, **options, weights=(("tau", 1e-3),))["rows"]
    assert fast[0]["hit_blocks"] == fast[1]["hit_blocks"] == plain[1]["hit_blocks"], "all decays: lru"
    with pytest.raises(KvtoolError, match="--cost-weight size"):
        run(workload, **options, weights=(("size", 1.0),))


def test_speeds_of_tiers_that_are_not_there_are_refused(workload):
    with pytest.raises(KvtoolError, match="--tier-latency host: no such tier"):
        run(workload, tiers=(("device", "9"),), tier_latencies=(("host", 0.1),))
