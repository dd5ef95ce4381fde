"""Several devices: each computes files of its own, and the folder is what one device makes."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from kvtool.analysis.build import build_workload
from kvtool.analysis.plan import Plan, PlanConfig, make_plan
from kvtool.cli import main
from kvtool.engine.compute.load import load_model
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.runner import Runner
from kvtool.engine.prewarm import PrewarmConfig, prewarm
from kvtool.engine.storage.codec import block_bytes, load_codec
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.manifest import read_manifest
from kvtool.engine.storage.verify import verify
from kvtool.logs.reader import open_log

BLOCK = 16


@pytest.fixture(scope="module")
def models(tiny_model: Path) -> list[Model]:
    return [load_model(str(tiny_model)) for _ in range(3)]


@pytest.fixture(scope="module")
def plan(models: list[Model], branching_log: Path) -> Plan:
    workload = build_workload(open_log([str(branching_log)]), models[0].encoder, BLOCK)
    shape, raw = Identity.of_model(models[0], BLOCK).shape, load_codec({"codec": "raw"})
    return make_plan(
        workload, PlanConfig(min_requests=1), lambda depth: block_bytes(raw, shape, depth == 0), 1024
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("devices", [2, 3])
def test_the_same_bytes_as_one_device_makes(models, plan, tmp_path, devices) -> None:
    config = PrewarmConfig(shard_bytes=int(plan.bytes.sum()) // 5)
    alone = prewarm(plan, models[0], tmp_path / "one", config)
    shared = prewarm(plan, models[0], tmp_path / "many", config, others=models[1:devices])
    assert contents(tmp_path / "one") == contents(tmp_path / "many")
    assert alone.files >= 5 and shared.tokens_computed == alone.tokens_computed == plan.forecast.tokens
    assert alone.tokens_again == 0 < shared.tokens_again < devices * int(plan.depth.max() + 1) * BLOCK
    (tmp_path / "many" / "shard-00002.safetensors").unlink()
    again = prewarm(plan, models[0], tmp_path / "many", config, others=models[1:devices])
    assert again.new_blocks == read_manifest(tmp_path / "many").files[2].rows
    assert contents(tmp_path / "one") == contents(tmp_path / "many")


def test_every_device_gets_a_file_of_a_small_plan(models, plan, tmp_path) -> None:
    result = prewarm(plan, models[0], tmp_path / "s", PrewarmConfig(), others=models[1:])
    assert result.files >= 3 and verify(tmp_path / "s") == []


def test_progress_and_errors_of_any_device_arrive(models, plan, tmp_path, monkeypatch) -> None:
    seen: list[int] = []
    prewarm(plan, models[0], tmp_path / "s", PrewarmConfig(), seen.append, others=models[1:2])
    assert seen == (np.arange(1, len(plan) + 1) * BLOCK).tolist()
    real = Runner.step

    def step(self: Runner, batch: list) -> object:
        if self.model is models[1]:
            raise MemoryError("the second device is full")
        return real(self, batch)

    monkeypatch.setattr(Runner, "step", step)
    with pytest.raises(MemoryError, match="the second device is full"):
        prewarm(plan, models[0], tmp_path / "t", PrewarmConfig(), others=models[1:2])
    assert verify(tmp_path / "t") == [] and not read_manifest(tmp_path / "t").complete


def test_devices_are_named_in_one_option(tiny_model, branching_log, tmp_path) -> None:
    common = ["prewarm", "--model", str(tiny_model), "--logs", str(branching_log), "--block-size", "16"]
    made = CliRunner().invoke(main, [*common, "--out", str(tmp_path / "s"), "--device", "cpu,cpu"])
    assert made.exit_code == 0, made.output
    assert verify(tmp_path / "s") == [] and len(read_manifest(tmp_path / "s").files) >= 2
    wrong = CliRunner().invoke(main, [*common, "--dry-run", "--device", "cpu,tpu"])
    assert wrong.exit_code == 2 and "--device tpu: not a" in wrong.stderr
