"""What a prewarmed folder looks like to a disk, and what Ctrl-C leaves of it."""

import stat
import threading
from pathlib import Path

import pytest

from kvtool.analysis.build import build_workload
from kvtool.analysis.plan import Plan, PlanConfig, make_plan
from kvtool.engine.compute.load import load_model
from kvtool.engine.compute.model import Model
from kvtool.engine.prewarm import PrewarmConfig, prewarm
from kvtool.engine.storage.codec import block_bytes, load_codec
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.shards import open_shards
from kvtool.engine.storage.verify import verify
from kvtool.logs.reader import open_log

BLOCK = 16


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return load_model(str(tiny_model))


@pytest.fixture(scope="module")
def plan(model: Model, branching_log: Path) -> Plan:
    workload = build_workload(open_log([str(branching_log)]), model.encoder, BLOCK)
    shape, raw = Identity.of_model(model, BLOCK).shape, load_codec({"codec": "raw"})
    return make_plan(
        workload, PlanConfig(min_requests=1), lambda depth: block_bytes(raw, shape, depth == 0), 1024
    )


def test_a_chain_is_read_in_one_go_but_where_hotter_branches_stand_between(plan, model, tmp_path) -> None:
    prewarm(plan, model, tmp_path / "s", PrewarmConfig())
    shards = open_shards(tmp_path / "s")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "s").iterdir()} == {0o600}
    children: dict[bytes, list] = {}
    for row in shards.rows:
        children.setdefault(row.parent, []).append(row)
    branches = 0
    for row in shards.rows:
        above = shards.index.get(row.parent)
        if above is None:
            continue
        siblings = sorted(children[row.parent], key=lambda one: one.offset)
        follows = row.offset == above.offset + above.bytes
        assert follows == (row is siblings[0]), (
            "the first child follows its parent, the others their siblings"
        )
        branches += not follows
    assert 0 < branches < len(shards.rows) / 4


def test_ctrl_c_keeps_what_is_committed_and_the_next_run_goes_on(plan, model, tmp_path) -> None:
    config = PrewarmConfig(shard_bytes=int(plan.bytes.sum()) // 4)
    prewarm(plan, model, tmp_path / "whole", config)
    pressed = len(plan) * BLOCK * 2 // 3

    def progress(tokens: int) -> None:
        if tokens >= pressed:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prewarm(plan, model, tmp_path / "s", config, progress)
    assert not [thread for thread in threading.enumerate() if thread.name == "kvtool-ahead"]
    assert verify(tmp_path / "s") == []
    stored = len(open_shards(tmp_path / "s").rows)
    assert 0 < stored < len(plan)
    result = prewarm(plan, model, tmp_path / "s", config)
    assert result.new_blocks == len(plan) - stored
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "s" / path.name).read_bytes() == path.read_bytes()
