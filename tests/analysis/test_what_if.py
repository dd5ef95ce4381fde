"""Other capacities and routings for a page, against the simulator, and within what may be replayed."""

from types import SimpleNamespace

import numpy as np
import pytest

from kvtool.analysis import what_if
from kvtool.analysis.curve import LruCurve
from kvtool.analysis.memory import ModelShape
from kvtool.analysis.runs import runs_of
from kvtool.analysis.simulate import SimulateConfig, Simulation


@pytest.fixture(scope="module")
def analysis(log):
    """Requests over a few shared heads with tails of their own."""
    random = np.random.default_rng(3)
    rows = []
    for number in range(60):
        head = int(random.integers(4))
        shared = [1000 * head + at for at in range(int(random.integers(1, 5)))]
        rows.append((number, f"s{number % 7}", [*shared, *(10_000 + 10 * number + at for at in range(2))]))
    workload = log(rows)
    return SimpleNamespace(workload=workload, runs=runs_of(workload), curve=LruCurve(workload))


def test_curves_are_the_simulators_and_belady_is_their_ceiling(analysis):
    shown = what_if.capacity(analysis, None)
    curves = {curve.policy: dict(curve.points) for curve in shown.curves}
    assert set(curves) == {"lru", "cost", "lfu", "gdsf", "belady"}
    assert shown.distinct_blocks == analysis.workload.distinct_blocks
    simulation = Simulation(analysis.workload, SimulateConfig())
    for policy, points in curves.items():
        sizes = sorted(points)
        assert max(sizes) == shown.distinct_blocks and len(sizes) >= 4
        for size in (sizes[0], sizes[len(sizes) // 2]):
            assert points[size] == simulation.row(policy, size)["tokens"]
    for size, rate in curves["belady"].items():
        assert all(rate >= curves[policy][size] - 1e-9 for policy in ("cost", "lfu", "gdsf"))


def test_memory_sizes_are_those_of_the_chosen_model_first(analysis):
    shape = ModelShape("mine", layers=2, heads=4, kv_heads=1, head_dim=8, weights=1)
    first, *others = what_if.capacity(analysis, shape).models
    assert (first.name, first.bytes_per_token) == ("mine", 2 * 2 * 1 * 8 * 2)
    sizes = {model.name: model.bytes_per_token for model in others}
    assert sizes["Llama 3.1 8B"] == 2 * 32 * 8 * 128 * 2
    assert sizes["Llama 3.1 70B"] == 2 * 80 * 8 * 128 * 2
    assert sizes["Qwen3 8B"] == 2 * 36 * 8 * 128 * 2
    assert sizes["Qwen3 32B"] == 2 * 64 * 8 * 128 * 2
    assert sizes["SmolLM2 135M"] == 2 * 30 * 3 * 64 * 2


def test_routings_share_one_capacity(analysis):
    shown = what_if.routing(analysis)
    simulation = Simulation(analysis.workload, SimulateConfig(replicas=4))
    assert shown.capacity_blocks == round(0.1 * analysis.workload.distinct_blocks)
    assert {row.routing for row in shown.rows} == {
        "random", "round-robin", "sticky", "hash", "prefix", "cost",
    }  # fmt: skip
    for row in shown.rows:
        expected = simulation.row("lru", shown.capacity_blocks, row.routing)
        assert (row.tokens, row.load) == (expected["tokens"], expected["max_load_over_mean"])
    assert shown.single == simulation.single_cache("lru", shown.capacity_blocks)["tokens"]


def test_a_long_log_is_replayed_less(analysis, monkeypatch):
    accesses = int(analysis.workload.lengths.sum())
    monkeypatch.setattr(what_if, "ACCESSES", 5 * accesses)
    assert [curve.policy for curve in what_if.capacity(analysis, None).curves] == ["lru", "belady"]
    assert what_if.routing(analysis) is None
    monkeypatch.setattr(what_if, "ACCESSES", accesses)
    assert [curve.policy for curve in what_if.capacity(analysis, None).curves] == ["lru"]
