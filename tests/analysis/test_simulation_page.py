"""The page of a simulation holds the rows that were simulated."""

import shlex
from dataclasses import replace

import numpy as np
import pytest

from kvtool.analysis.simulate import SimulateConfig, Simulation
from kvtool.analysis.simulation_advice import Known
from kvtool.analysis.simulation_page import simulation_page

CONFIG = SimulateConfig(("10%", "50%"), ("lru", "cost", "belady"))


@pytest.fixture(scope="module")
def workload(log):
    random = np.random.default_rng(5)
    rows = []
    for number in range(80):
        head = 100 * int(random.integers(6))
        rows.append((number, f"s{number % 9}", [head, head + 1, head + 2, 10_000 + number]))
    return log(rows)


def paged(workload, config):
    simulation = Simulation(
        workload, config, known=Known([{"block_size": 4, "tokens": 0.5, "distinct_blocks": 9}])
    )
    document = simulation.run()
    return document, simulation_page(simulation, document, ["my log.jsonl"], [("--where", "x > 1")], False)


def test_curves_are_the_rows_and_lru_is_whole(workload):
    document, page = paged(workload, CONFIG)
    curves = {curve.policy: list(curve.points) for curve in page.capacity.curves}
    for policy in ("cost", "belady"):
        assert curves[policy] == [
            (row["capacity_blocks"], row["tokens"]) for row in document["rows"] if row["policy"] == policy
        ]
    assert len(curves["lru"]) > 20
    row = next(row for row in document["rows"] if row["policy"] == "lru")
    assert dict(curves["lru"])[row["capacity_blocks"]] == row["tokens"]
    assert page.figures[0].text == f"{document['unbounded']['tokens']:.1%}"
    assert page.routing is None and page.redacted
    assert [one.requests for one in page.over_time.intervals] == [4] * 20


def test_replicas_have_their_routings_and_no_single_cache_curve(workload):
    document, page = paged(workload, replace(CONFIG, replicas=3))
    lru = [(row["capacity_blocks"], row["tokens"]) for row in document["rows"] if row["policy"] == "lru"]
    assert {curve.policy: list(curve.points) for curve in page.capacity.curves}["lru"] == lru
    by_prefix = next(row for row in page.routing.rows if row.routing == "prefix")
    assert (page.routing.capacity_blocks, by_prefix.tokens) == (lru[0][0], lru[0][1])
    assert page.routing.replicas == 3 and page.routing.policy == "lru"


def test_advice_comes_with_its_command(workload):
    document, page = paged(workload, CONFIG)
    pieces = {piece["code"]: piece for piece in document["advice"]}
    steps = {step.text: shlex.split(step.command) for step in page.steps}
    assert [step.text for step in page.steps] == [piece["text"] for piece in document["advice"]]
    capacity = pieces["capacity"]
    assert steps[capacity["text"]] == [
        "kvtool", "simulate", "my log.jsonl", "--where", "x > 1",
        "--capacity", str(capacity["evidence"]["blocks"]["90%"]), "--policy", "all",
    ]  # fmt: skip
