"""An analysis written to DuckDB and read back is the same workload."""

import dataclasses
import json
import re

import duckdb
import numpy as np
import pytest

from kvtool.analysis.build import build_runs
from kvtool.analysis.hit_rates import hit_rates
from kvtool.analysis.prefixes import usage
from kvtool.analysis.store import is_analysis, load_analysis, load_document, save_analysis
from kvtool.errors import KvtoolError
from kvtool.report import Finding, Fix, Location
from kvtool.requests import BlockIds, Request, Source

DOCUMENT = {
    "capacity": [{"capacity_blocks": 3, "policy": "lru", "tokens": 0.5, "blocks": 0.25, "share": 1.0}],
    "block_sizes": [{"block_size": 2, "tokens": 0.5, "distinct_blocks": 3}],
    "hot_prefixes": [],
    "advice": [{"code": "capacity", "text": "t", "evidence": {"a": 1}}],
}
FINDING = Finding(
    "KV101", "clock-time", "error", "m", "f", Location("log", 1, "messages[0].content", "system", 3, 9), "s",
    ["x"], 2, 1, 2, 40, 0.5, Fix("move-to-last-user", True),
)  # fmt: skip


class Ids:
    """Stands in for an encoder: prompts are token ids already."""

    fingerprint = "ids"

    def encode(self, requests):
        return [each.token_ids for each in requests]


def save(path, workload, findings=()):
    save_analysis(path, workload, hit_rates(workload), usage(workload), findings, DOCUMENT)


def tokenized():
    rows = [
        ([1, 2, 3, 4, 5], "a", "s", 7),
        ([1, 2, 9, 9], "a", None, None),
        ([1, 2], "b", "t", 5),
        ([1], "a", "s", 9),
    ]
    requests = [
        Request(
            id=f"r{row}",
            source=Source("log", row),
            arrival=arrival,
            session=session,
            model=model,
            tenant="x" if session else None,
            token_ids=np.array(tokens, np.uint32),
            output_tokens=row or None,
        )
        for row, (tokens, model, session, arrival) in enumerate(rows)
    ]
    return build_runs(requests, Ids(), 2)


def trace():
    rows = [([0, 2**40], 1000), ([0, 5, 6], 1536), ([0], 3)]
    requests = [
        Request(id=str(row), source=Source("t", row), block_ids=BlockIds(np.array(ids), 512, tokens))
        for row, (ids, tokens) in enumerate(rows)
    ]
    return build_runs(requests, None)


@pytest.mark.parametrize("make", [tokenized, trace])
def test_round_trip(tmp_path, make):
    runs = make()
    save(tmp_path / "a.duckdb", runs)
    workload = runs.unfolded()
    back = load_analysis(tmp_path / "a.duckdb")
    for field in dataclasses.fields(workload):
        before, after = getattr(workload, field.name), getattr(back, field.name)
        if isinstance(before, np.ndarray) and field.name != "session":
            assert before.dtype == after.dtype and (before == after).all(), field.name
        elif field.name == "meta":
            assert after.equals(before)
        elif field.name not in ("session", "session_names"):
            assert list(before) == list(after) if isinstance(before, list) else before == after, field.name
    names = [[w.session_names[s] if s >= 0 else None for s in w.session] for w in (workload, back)]
    assert names[0] == names[1]
    assert (back.hashes == workload.hashes).all()


def test_tables_answer_sql(tmp_path):
    path = tmp_path / "a.duckdb"
    runs = tokenized()
    save(path, runs, [FINDING])
    workload = runs.unfolded()
    assert is_analysis(path) and not is_analysis(tmp_path / "none")
    assert load_document(path) == DOCUMENT
    with duckdb.connect(str(path), read_only=True) as connection:
        one = lambda query: next(iter(connection.execute(query).fetchall()), None)  # noqa: E731
        assert one("SELECT code, location.path, fix.safe FROM findings") == (
            "KV101",
            "messages[0].content",
            True,
        )
        assert one("SELECT sum(saved_tokens) FROM requests") == (hit_rates(workload).saved_tokens,)
        assert one("SELECT requests, words FROM nodes JOIN blocks USING (node) WHERE requests = 2") is None
        assert one("SELECT max(capacity_blocks) FROM curves") == (3,)
        assert json.loads(one("SELECT evidence FROM advice")[0]) == {"a": 1}
        hashes = connection.execute("SELECT hash FROM nodes ORDER BY node").fetchall()
    assert [row[0] for row in hashes] == [bytes(row) for row in workload.hashes]


def test_a_failed_save_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "a.duckdb"
    save(path, trace())
    before = path.read_bytes()
    monkeypatch.setattr("kvtool.analysis.store._blocks", lambda *_: (_ for _ in ()).throw(MemoryError))
    with pytest.raises(MemoryError):
        save(path, tokenized())
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.duckdb"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("ALTER TABLE requests DROP COLUMN partial", 'not an analysis of this version: Field "partial"'),
        ("DELETE FROM meta WHERE key = 'width'", "not an analysis of this version: width"),
        ("UPDATE meta SET value = 'x' WHERE key = 'block_size'", "not an analysis of this version: invalid"),
        ("UPDATE meta SET value = '1' WHERE key = 'schema'", "its schema is"),
        ("DELETE FROM meta WHERE key = 'document'", "meta has no document"),
        ("DELETE FROM nodes WHERE node = 1", "do not fit together"),
        ("DELETE FROM blocks WHERE node = 1", "do not fit together"),
        ("UPDATE nodes SET parent = node", "do not fit together"),
        ("UPDATE requests SET leaf = 999", "do not fit together"),
        ("UPDATE requests SET space = 9", "do not fit together"),
    ],
)
def test_an_older_or_changed_file_is_refused_in_a_line(tmp_path, change, named):
    path = tmp_path / "a.duckdb"
    save(path, tokenized())
    assert path.stat().st_mode & 0o777 == 0o600
    with duckdb.connect(str(path)) as connection:
        connection.execute(change)
    with pytest.raises(KvtoolError, match=re.escape(named)):
        load_document(path) if "document" in named else load_analysis(path)


def test_what_is_no_analysis_is_named(tmp_path):
    with pytest.raises(KvtoolError, match="no such file"):
        load_analysis(tmp_path / "none.duckdb")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(KvtoolError, match="text: not an analysis"):
        load_analysis(tmp_path / "text")
    with duckdb.connect(str(tmp_path / "other.duckdb")) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1")
    with pytest.raises(KvtoolError, match=r"other\.duckdb: not an analysis"):
        load_analysis(tmp_path / "other.duckdb")
    with pytest.raises(KvtoolError, match="no such folder"):
        save(tmp_path / "no" / "a.duckdb", trace())
