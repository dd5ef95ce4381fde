"""kvtool normalize on real samples: promised rates, same format, idempotence, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvtool.cli import main
from kvtool.prompts import Normalizer

SAMPLES = Path(__file__).resolve().parent.parent.parent / "samples"


def normalize(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["normalize", *map(str, arguments), "--tokenizer", "bytes"])


def document(*arguments: str | Path) -> dict[str, Any]:
    result = normalize(*arguments, "--output-format", "json")
    assert result.exit_code == 0, result.output
    loaded: dict[str, Any] = json.loads(result.stdout)
    return loaded


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("normalized")
    report = document(
        SAMPLES / "airline-chat.jsonl",
        "-o",
        folder / "fixed.jsonl",
        "--rules-out",
        folder / "normalizer.json",
    )
    (folder / "report.json").write_text(json.dumps(report))
    return folder


def test_the_clock_and_the_tools_are_fixed_and_the_rate_is_measured_on_the_file(fixed: Path) -> None:
    report = json.loads((fixed / "report.json").read_text())
    assert {edit["code"] for edit in report["edits"]} == {"KV101", "KV201"}
    assert report["hit_rate"]["before"] < 0.2
    assert report["hit_rate"]["after"] > 0.85
    again = document(fixed / "fixed.jsonl", "-o", fixed / "twice.jsonl")
    assert again["hit_rate"]["before"] == report["hit_rate"]["after"]
    assert again["rows_changed"] == 0
    assert (fixed / "twice.jsonl").read_bytes() == (fixed / "fixed.jsonl").read_bytes()


def test_the_rules_do_to_a_live_request_what_was_done_to_the_log(fixed: Path) -> None:
    normalizer = Normalizer.load(fixed / "normalizer.json")
    before = (SAMPLES / "airline-chat.jsonl").read_text().splitlines()
    after = (fixed / "fixed.jsonl").read_text().splitlines()
    assert len(before) == len(after)
    for old, new in zip(map(json.loads, before), map(json.loads, after), strict=True):
        messages, tools = normalizer.apply(old["messages"], old["tools"])
        assert (messages, tools) == (new["messages"], new["tools"])
        assert {key: old[key] for key in old if key not in ("messages", "tools")} == {
            key: new[key] for key in new if key not in ("messages", "tools")
        }


def test_a_trajectory_is_edited_once_as_a_conversation(tmp_path: Path) -> None:
    runs = json.loads((SAMPLES / "airline-tau-bench.json").read_text())
    for number, run in enumerate(runs):
        head = run["traj"][0]
        head["content"] = f"Session started at 10:{number:02d}:00.\n" + head["content"]
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    report = document(tmp_path / "runs.json", "-o", tmp_path / "fixed.json")
    assert report["hit_rate"]["after"] > report["hit_rate"]["before"]
    written = json.loads((tmp_path / "fixed.json").read_text())
    assert len({run["traj"][0]["content"] for run in written}) == 1
    for number, run in enumerate(written):
        first_user = next(message for message in run["traj"] if message["role"] == "user")
        assert first_user["content"].endswith(f"Session started at 10:{number:02d}:00.")
        assert len(run["traj"]) == len(runs[number]["traj"])
    again = document(tmp_path / "fixed.json", "-o", tmp_path / "twice.json")
    assert again["rows_changed"] == 0


@pytest.mark.parametrize("target", ["-o", "--rules-out"])
def test_an_input_is_never_written_over(tmp_path: Path, target: str) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes((SAMPLES / "airline-chat.jsonl").read_bytes())
    (tmp_path / "link.jsonl").hardlink_to(log)
    before = log.read_bytes()
    for path in (log, tmp_path / "x" / ".." / "log.jsonl", tmp_path / "link.jsonl"):
        arguments = (
            [log, target, path] if target == "-o" else [log, "-o", tmp_path / "out.jsonl", target, path]
        )
        result = normalize(*arguments)
        assert result.exit_code == 2
        assert "is an input" in result.output
    assert log.read_bytes() == before
    assert not (tmp_path / "out.jsonl").exists()


def test_parquet_stays_parquet(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    report = document(SAMPLES / "airline-chat.parquet", "-o", tmp_path / "fixed.parquet")
    assert report["hit_rate"]["after"] > 0.85
    assert pq.read_schema(tmp_path / "fixed.parquet") == pq.read_schema(SAMPLES / "airline-chat.parquet")
