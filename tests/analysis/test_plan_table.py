"""The plan as a table: it says what the plan says, and an analysis beside it keeps what it had."""

from pathlib import Path

import duckdb
import numpy as np
import pytest

from kvtool.analysis.build import build_workload
from kvtool.analysis.plan import PlanConfig, make_plan
from kvtool.analysis.plan_table import save_plan
from kvtool.blocks import BlockHash
from kvtool.errors import KvtoolError
from kvtool.requests import Request, Source


class Ids:
    """Stands in for an encoder: prompts are token ids already."""

    fingerprint = "ids"

    def encode(self, requests):
        return [each.token_ids for each in requests]


@pytest.fixture
def plan():
    prompts = [[1, 1, 2, 2, 0]] * 3 + [[1, 1, 3, 3, 0]] * 2
    requests = [
        Request(id=str(at), source=Source("log", at + 1), token_ids=np.array(tokens, np.uint32))
        for at, tokens in enumerate(prompts)
    ]
    config = PlanConfig({"device": 8, "disk": 99})
    return make_plan(build_workload(requests, Ids(), 2), config, lambda _: 10, 100, memory_bytes=8)


HASHES = [BlockHash(bytes([at]) * 16) for at in range(3)]


def test_rows_are_the_plans(plan, tmp_path: Path) -> None:
    save_plan(tmp_path / "plan.duckdb", plan, HASHES)
    assert (tmp_path / "plan.duckdb").stat().st_mode & 0o777 == 0o600
    with duckdb.connect(str(tmp_path / "plan.duckdb")) as connection:
        rows = connection.execute(
            "SELECT parent, hex(hash), tenant, depth, requests, expected_hits, bytes, tier, tokens, "
            "value = expected_hits * rebuild_flops / bytes FROM prewarm_plan ORDER BY row"
        ).fetchall()
    assert [row[:9] for row in rows] == [
        (None, "00" * 16, "", 0, 5, 5.0, 10, "device", (1, 1)),
        (0, "01" * 16, "", 1, 3, 3.0, 10, "disk", (2, 2)),
        (0, "02" * 16, "", 1, 2, 2.0, 10, "disk", (3, 3)),
    ]
    assert all(row[9] for row in rows)


def test_other_tables_stay_and_an_older_plan_goes(plan, tmp_path: Path) -> None:
    file = tmp_path / "analysis.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE meta AS SELECT 7 AS key")
        connection.execute("CREATE TABLE prewarm_plan AS SELECT 'old' AS row")
    save_plan(file, plan, HASHES)
    with duckdb.connect(str(file)) as connection:
        assert connection.execute("SELECT key FROM meta").fetchall() == [(7,)]
        assert connection.execute("SELECT count(*), min(row) FROM prewarm_plan").fetchall() == [(3, 0)]


def test_what_cannot_hold_it_is_named(plan, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine " * 2000)
    with pytest.raises(KvtoolError, match=r"notes\.txt: cannot hold a plan"):
        save_plan(tmp_path / "notes.txt", plan, HASHES)
    assert (tmp_path / "notes.txt").read_text() == "mine " * 2000
    for name, text in (
        ("log.jsonl", '{"a": 1}\n' * 500),
        ("empty.duckdb", ""),
    ):  # DuckDB reads JSON as tables
        (tmp_path / name).write_text(text)
        with pytest.raises(KvtoolError, match=rf"{name}: cannot hold a plan: not a DuckDB file"):
            save_plan(tmp_path / name, plan, HASHES)
        assert (tmp_path / name).read_text() == text
    with pytest.raises(KvtoolError, match="no such folder"):
        save_plan(tmp_path / "none" / "plan.duckdb", plan, HASHES)
