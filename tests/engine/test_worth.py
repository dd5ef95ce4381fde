"""A plan's prices: FLOPs from the model, speeds measured or given, and nothing stored that would not pay."""

import tempfile
from pathlib import Path

import pytest

from kvtool.analysis.build import build_workload
from kvtool.analysis.load_or_compute import Speeds
from kvtool.analysis.plan import PlanConfig
from kvtool.engine.compute.cost import prefill_of
from kvtool.engine.compute.load import load_model
from kvtool.engine.compute.model import Model
from kvtool.engine.speeds import _prefill as PREFILL  # the tests' own stands in for it, see conftest.py
from kvtool.engine.speeds import measure_speeds
from kvtool.engine.storage.codec import load_codec
from kvtool.engine.storage.footprint import beside_block, beside_blocks
from kvtool.engine.worth import Prices
from kvtool.errors import KvtoolError
from kvtool.logs.reader import open_log

BLOCK = 16
RAW = load_codec({"codec": "raw"})


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return load_model(str(tiny_model))


@pytest.fixture(scope="module")
def workload(model: Model, branching_log: Path):
    return build_workload(open_log([str(branching_log)]), model.encoder, BLOCK)


def test_flops_are_those_of_weights_and_heads(model: Model) -> None:
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32  # q, o; k, v; gated MLP; norms
    cost = prefill_of(model)
    assert cost.linear == 2 * (2 * layer + 32)
    assert cost.attention == 2 * 2 * 4 * (8 + 8) and cost.windows == ()


def test_what_is_given_is_taken_and_the_rest_measured(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = measure_speeds(model, RAW, BLOCK, tmp_path, prefill_rate=100.0, tiers={"host": 5})
    whole = prefill_of(model)
    tokens = 256
    assert speeds.compute == pytest.approx(
        (whole.linear * tokens + whole.attention * tokens * (tokens - 1) / 2) / tokens * 100
    )
    assert speeds.tiers["host"] == 5 and speeds.tiers["disk"] > 1e6 and 0 < speeds.decode < 1
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("kvtool.engine.speeds._prefill", PREFILL)
    assert measure_speeds(model, RAW, BLOCK, tmp_path).compute > 1e6


def test_a_dry_run_measures_elsewhere_where_it_may_not_write(model: Model, tmp_path, monkeypatch) -> None:
    asked: list[Path] = []
    real = tempfile.TemporaryFile

    def temporary(dir: Path) -> object:
        asked.append(dir)
        return real(dir=dir)

    monkeypatch.setattr("tempfile.TemporaryFile", temporary)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    speeds = measure_speeds(model, RAW, BLOCK, tmp_path, prefill_rate=1.0)
    assert asked == [Path(tempfile.gettempdir())] and speeds.tiers["disk"] > 1e6


def test_a_codec_or_tier_that_is_slower_than_computing_is_not_used(model: Model, workload) -> None:
    limits = PlanConfig({"host": 4 * 16 * 2 * 2 * 16 * 4, "disk": 10**9})
    rate = prefill_of(model).linear * 1e4  # about 10,000 tokens a second
    fast = Speeds(rate, {"host": 1e9, "disk": 1e8}, decode=0.0)
    priced = Prices(workload, model, fast).plan(limits, RAW)
    assert [way.pays for way in priced.ways] == [True, True] and priced.unused == ()
    assert priced.seconds_saved > 0 and (priced.plan.tier == 1).sum() == 4
    priced.require_gain("raw")
    slow_disk = Prices(workload, model, Speeds(rate, {"host": 1e9, "disk": 1e5}, 0.0)).plan(limits, RAW)
    with pytest.raises(KvtoolError, match=r"--codec raw: a token takes \d+ µs to load from disk and \d+"):
        slow_disk.require_gain("raw")
    slow_host = Prices(workload, model, Speeds(rate, {"host": 1e5, "disk": 1e9}, 0.0)).plan(limits, RAW)
    assert slow_host.unused == ("host",) and (slow_host.plan.tier == 2).all()
    slow_decode = Prices(workload, model, Speeds(rate, fast.tiers, decode=1.0)).plan(limits, RAW)
    assert [way.pays for way in slow_decode.ways] == [True, False]


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (PlanConfig(min_requests=99), "no block is used by --min-requests requests of the log"),
        (PlanConfig({"disk": 100}), "no block fits --budget"),
    ],
)
def test_an_empty_plan_has_no_prices_and_says_why(model: Model, workload, limits, why) -> None:
    priced = Prices(workload, model, Speeds(1.0, {}, 0.0)).plan(limits, RAW)
    assert priced.ways == [] and priced.seconds_saved == 0
    with pytest.raises(KvtoolError, match=f"nothing to prewarm, the plan is empty: {why}") as caught:
        priced.require_gain("raw")
    beside = beside_block(RAW, Prices(workload, model, Speeds(1.0, {}, 0.0)).shape, True)
    least = 4096 + beside + beside_blocks(100, [""])
    assert (caught.value.hint == f"with one block the files take {least:,} bytes") == ("budget" in why)


def test_prompts_below_a_block_are_named(model: Model, branching_log: Path) -> None:
    short = build_workload(list(open_log([str(branching_log)]))[:1], model.encoder, 1024)
    priced = Prices(short, model, Speeds(1.0, {}, 0.0)).plan(PlanConfig(), RAW)
    assert priced.emptiness() == (
        "no prompt is longer than a block of 1024 tokens",
        "give a smaller --block-size",
    )
