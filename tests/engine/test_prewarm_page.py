"""The report page of a prewarm plan and of a run."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from kvtool.analysis.build import build_workload
from kvtool.analysis.plan import Plan, PlanConfig, make_plan
from kvtool.analysis.workload import Workload
from kvtool.blocks import BlockHash
from kvtool.cli import main
from kvtool.engine.prewarm_page import CELLS, _as_stored, _cells, _value, session_counts
from kvtool.engine.storage.index import BlockRow
from kvtool.requests import Request, Source
from kvtool.tokens import load_encoder

SIZE = 4


def request(tokens: list[int], session: str, tenant: str = "a", model: str = "m") -> Request:
    return Request(
        "id", Source("log", 1), session=session, tenant=tenant, model=model,
        token_ids=np.array(tokens, np.uint32),
    )  # fmt: skip


def planned(requests: list[Request]) -> tuple[Plan, Workload]:
    workload = build_workload(requests, load_encoder("bytes"), SIZE)
    return make_plan(workload, PlanConfig(), lambda depth: 100 if depth == 0 else 80, 4096), workload


def stored(depth: int, codec: str, kl: float | None, size: int) -> BlockRow:
    name = BlockHash(bytes(16))
    return BlockRow(name, name, depth, np.zeros(SIZE, np.uint32), 0, 0, 0, size, codec, "", 1.0, kl)


def test_sessions_of_a_planned_block_are_counted_over_models_and_apart_by_tenant() -> None:
    shared = [1, 2, 3, 4]
    plan, workload = planned(
        [
            request([*shared, 5, 6, 7, 8, 9], "one"),
            request([*shared, 5, 6, 7, 8, 9], "two"),
            request([*shared, 5, 6, 7, 8, 9], "two"),
            request([*shared, 9], "three", model="other"),
            request([*shared, 9], "three", tenant="b"),
            request([*shared, 9], "three", tenant="b"),
        ]
    )
    counts = {
        (plan.tenants[tenant], int(depth)): int(count)
        for tenant, depth, count in zip(plan.tenant, plan.depth, session_counts(plan, workload), strict=True)
    }
    assert counts == {("a", 0): 2, ("a", 1): 2, ("b", 0): 1}


def test_cells_keep_bytes_and_part_where_codec_or_protection_changes() -> None:
    length = 3 * CELLS * SIZE
    plan, _ = planned([request(list(range(length + 1)), name) for name in ("one", "two")])
    rows: list[BlockRow | None] = [None] * len(plan)
    rows[5] = stored(5, "int4", 0.25, 20)
    rows[6] = stored(6, "int4", 0.5, 30)
    protected = np.zeros(len(plan), np.bool_)
    protected[:2] = True
    cells = _cells(_as_stored(plan, rows), rows, elements=16, protected=protected, codec="raw")
    assert sum(cell.blocks for cell in cells) == len(plan) == 3 * CELLS
    assert sum(cell.bytes for cell in cells) == 100 + 80 * (len(plan) - 3) + 50
    assert [(cell.blocks, cell.codec, cell.protected, cell.kl) for cell in cells[:4]] == [
        (2, "raw", True, None),
        (3, "raw", False, None),
        (2, "int4", False, 0.5),
        (3, "raw", False, None),
    ]
    assert cells[0].bits == 8 * 180 / (16 * 2) and cells[2].bits == 8 * 50 / (16 * 2)
    assert len(cells) <= CELLS + 4


def test_bytes_are_taken_by_their_worth() -> None:
    """Three requests of a short prompt, two of a long one: its blocks, used twice, come after."""
    plan, _ = planned(
        [request([7, 7, 7, 7, 7], "short")] * 3
        + [request([*range(8), 9], "long"), request([*range(8), 8], "x")]
    )
    assert _value(plan)[1] == (100, 12)
    assert _value(plan)[-1] == (280, 28)
    assert all(np.diff([size for size, _ in _value(plan)]) > 0)


@pytest.mark.parametrize("dry", [True, False], ids=["plan", "run"])
def test_the_command_writes_its_page(
    dry: bool, tiny_model: Path, branching_log: Path, tmp_path: Path
) -> None:
    page, out = tmp_path / "page.html", tmp_path / "shards"
    arguments = [
        "--logs",
        str(branching_log),
        "--model",
        str(tiny_model),
        "--codec",
        "int8",
        "--protect",
        "none",
        "--budget",
        "1GiB",
    ]
    end = ["--dry-run"] if dry else ["--out", str(out)]
    result = CliRunner().invoke(
        main, ["prewarm", *arguments, *end, "--report", str(page), "--output-format", "json"]
    )
    assert result.exit_code == 0, result.output
    document, text = json.loads(result.stdout), page.read_text(encoding="utf-8")
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    cells = data["storage"]["cells"]
    assert sum(cell["blocks"] for cell in cells) == document["plan"]["blocks"]
    assert sum(cell["bytes"] for cell in cells) == document["plan"]["bytes"]
    assert {cell["codec"] for cell in cells} == {"int8"}
    assert data["storage"]["budget"] == 2**30
    assert f"{document['plan']['hit_rate']['tokens']:.1%}" in text
    command = text.split('id="command-1">')[1].split("</code>")[0]
    if dry:
        assert data["storage"]["value"][-1][0] == document["plan"]["bytes"]
        assert shlex.split(command)[:4] == ["kvtool", "prewarm", "--logs", str(branching_log)]
        assert command.endswith("--codec int8 --protect none --budget disk=1073741824 --out shards")
    else:
        assert command == f"kvtool shards verify {out}"
