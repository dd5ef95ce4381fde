"""reuse.json: written once, read back, refused when it is something else; the server ranks by it."""

import json
import logging
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvtool.cache.policies import fitted
from kvtool.cli import main
from kvtool.engine.storage.files import DAMAGED
from kvtool.engine.storage.maintenance import collect_garbage
from kvtool.engine.storage.outlook import OUTLOOK, read_outlook
from kvtool.engine.storage.reuse import REUSE, read_reuse, write_reuse
from kvtool.engine.storage.verify import verify
from kvtool.errors import KvtoolError


@pytest.fixture(scope="module")
def busy_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hundred chats of one question, a second apart, under four system prompts."""
    path = tmp_path_factory.mktemp("log") / "busy.jsonl"
    rows = [
        {
            "model": "tiny",
            "messages": [
                {"role": "system", "content": f"You answer as number {number % 4}. " * (2 + number % 4)},
                {"role": "user", "content": f"Question {number}?"},
            ],
            "timestamp": 1700000000 + number,
        }
        for number in range(200)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prewarm(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(
        main, ["prewarm", "--prefill-rate", "1", *map(str, arguments), "--output-format", "json"]
    )
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.fixture(scope="module")
def shards(tiny_model: Path, busy_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prewarmed") / "shards"
    document = prewarm("--model", tiny_model, "--logs", busy_log, "--block-size", 16, "--out", folder)
    model = read_reuse(folder)
    assert model is not None and document["reuse_model"] == len(model.hazards) > 1
    return folder


def test_the_model_disturbs_neither_verify_nor_gc_nor_a_second_run(
    shards: Path, tiny_model: Path, busy_log: Path, tmp_path: Path
) -> None:
    assert verify(shards) == []
    assert collect_garbage(shards) == (0, 0)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in shards.iterdir()}
    assert REUSE in before and stat.S_IMODE((shards / REUSE).stat().st_mode) == 0o600
    common = ("--model", tiny_model, "--logs", busy_log, "--block-size", 16, "--out")
    assert prewarm(*common, shards)["up_to_date"]
    assert before == {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in shards.iterdir()}
    prewarm(*common, tmp_path / "again")
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == {
        name: data for name, (data, _) in before.items()
    }


def test_a_small_log_leaves_no_model_and_none_is_deleted(
    shards: Path, tiny_model: Path, branching_log: Path, tmp_path: Path
) -> None:
    common = ("--model", tiny_model, "--logs", branching_log, "--block-size", 16, "--out")
    assert prewarm(*common, tmp_path / "small")["reuse_model"] is None
    assert not (tmp_path / "small" / REUSE).exists() and read_reuse(tmp_path / "small") is None
    model = read_reuse(shards)
    assert model is not None
    write_reuse(tmp_path / "small", model)
    prewarm(*common, tmp_path / "small")
    assert (tmp_path / "small" / REUSE).read_bytes() == (shards / REUSE).read_bytes()


@pytest.mark.parametrize("name", [REUSE, OUTLOOK])
def test_what_is_said_of_a_damaged_companion_helps(
    tiny_model: Path, branching_log: Path, busy_log: Path, tmp_path: Path, name: str
) -> None:
    """Run prewarm again: with a log that teaches it is made anew, with one that does not it goes."""
    for log in (busy_log, branching_log):
        folder = tmp_path / log.stem
        common = ("--model", tiny_model, "--logs", log, "--block-size", 16, "--out", folder)
        prewarm(*common)
        taught = (folder / name).exists()
        assert taught == (log == busy_log) or name == OUTLOOK
        (folder / name).write_text("{")
        with pytest.raises(KvtoolError) as refused:
            (read_reuse if name == REUSE else read_outlook)(folder)
        assert refused.value.hint == DAMAGED and [fault.file for fault in verify(folder)] == [name]
        prewarm(*common)
        assert verify(folder) == [] and (folder / name).exists() == taught
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    result = CliRunner().invoke(main, ["prewarm", *map(str, common)])
    assert result.exit_code == 2 and f"{name}: Is a directory" in result.stderr


@pytest.mark.parametrize("data", [b"{}", b"\xff\xfe", b"[1"])
def test_something_else_is_refused_by_name(tmp_path: Path, data: bytes) -> None:
    (tmp_path / REUSE).write_bytes(data)
    with pytest.raises(KvtoolError, match=f"{tmp_path.name}/{REUSE}"):
        read_reuse(tmp_path)


def test_the_server_ranks_by_it_and_says_when_it_cannot(
    serving: Callable[..., Any], shards: Path, tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = read_reuse(shards)
    assert model is not None
    with serving(shards=shards, model=str(tiny_model), policy="fitted", device_blocks=16) as running:
        used = running.engine.scheduler.pool.device.policy
        assert used == fitted.by_table(model.table, 16) and used.ages
    assert not caplog.records
    with (
        caplog.at_level(logging.WARNING),
        serving(model=str(tiny_model), policy="fitted", device_blocks=16) as running,
    ):
        assert running.engine.scheduler.pool.device.policy is fitted.POLICY
    assert "ranking as cost does" in caplog.text
