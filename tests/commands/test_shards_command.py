"""kvtool shards as users call it: exit codes, the list of bad blocks, JSON and terminal."""

import json
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from kvtool.analysis.reuse_model import ReuseModel
from kvtool.cache.reuse_table import ReuseTable
from kvtool.cli import main
from kvtool.engine.storage.reuse import read_reuse, write_reuse
from kvtool.engine.storage.shards import open_shards

TABLE = ReuseTable(np.array([[-1, 0, 0, 0]]), np.zeros(0), np.ones((1, 1)), False)
"""One class for all blocks."""


def kvtool(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


@pytest.fixture(scope="module")
def made(tiny_model: Path, branching_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "shards"
    arguments = ["--model", tiny_model, "--logs", branching_log, "--block-size", 16, "--out", folder]
    assert kvtool("prewarm", *arguments).exit_code == 0
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "shards"))


def flip(folder: Path, row: int) -> str:
    """Change one bit of a block; its hash."""
    bad = open_shards(folder).rows[row]
    path = folder / "shard-00000.safetensors"
    data = bytearray(path.read_bytes())
    data[bad.offset + 9] ^= 1
    path.write_bytes(data)
    return bad.hash.hex()


def test_ls_names_the_model_the_files_and_the_prefixes(folder) -> None:
    result = kvtool("shards", "ls", folder, "--output-format", "json")
    data = json.loads(result.stdout)
    shards = open_shards(folder)
    assert result.exit_code == 0 and data["schema"] == "kvtool.shards-ls/1"
    assert data["model"]["name"] == "tiny-llama" and len(data["model"]["weights"]) == 64
    assert data["blocks"] == len(shards.rows) == sum(file["blocks"] for file in data["files"])
    assert data["prefixes"][0]["tokens"] == 16 * (
        1 + shards.index[bytes.fromhex(data["prefixes"][0]["hash"])].depth
    )
    terminal = kvtool("shards", "ls", folder)
    assert "tiny-llama" in terminal.stdout and "shard-00000.safetensors" in terminal.stdout


def test_verify_passes_and_fails_with_the_list(folder) -> None:
    good = kvtool("shards", "verify", folder)
    assert good.exit_code == 0 and "every byte verified" in good.stdout
    names = [flip(folder, 3), flip(folder, 8)]
    bad = kvtool("shards", "verify", folder, "--output-format", "json")
    assert bad.exit_code == 1
    faults = json.loads(bad.stdout)["faults"]
    assert [(fault["block"], fault["field"]) for fault in faults] == [(name, "checksum") for name in names]
    terminal = kvtool("shards", "verify", folder)
    assert terminal.exit_code == 1 and names[0][:16] in terminal.stdout.replace("\n", "")


def test_a_folder_that_is_none_is_exit_2(tmp_path) -> None:
    for action in ("ls", "verify", "gc"):
        result = kvtool("shards", action, tmp_path)
        assert result.exit_code == 2 and "no manifest.json" in result.stderr


def test_diff(folder, made) -> None:
    same = kvtool("shards", "diff", made, folder)
    assert same.exit_code == 0 and "0 changed" in same.stdout
    shutil.rmtree(folder)
    assert kvtool("shards", "merge", made, "--out", folder).exit_code == 0
    assert kvtool("shards", "diff", made, folder).exit_code == 0
    size = open_shards(made).rows[0].bytes
    assert kvtool("shards", "gc", folder, "--keep", 4 * size).exit_code == 0
    result = kvtool("shards", "diff", made, folder, "--output-format", "json")
    data = json.loads(result.stdout)
    assert (
        result.exit_code == 1
        and data["same"] == 4
        and len(data["only_left"]) == len(open_shards(made).rows) - 4
    )


def test_gc_then_prewarm_repairs(folder, made, tiny_model, branching_log) -> None:
    flip(folder, 30)
    cleaned = kvtool("shards", "gc", folder, "--output-format", "json")
    assert cleaned.exit_code == 0 and json.loads(cleaned.stdout)["blocks_dropped"] >= 1
    checked = kvtool("shards", "verify", folder)
    assert checked.exit_code == 0 and "unfinished" in checked.stdout
    arguments = ["--model", tiny_model, "--logs", branching_log, "--block-size", 16, "--out", folder]
    assert kvtool("prewarm", *arguments).exit_code == 0
    assert kvtool("shards", "verify", folder).exit_code == 0
    assert kvtool("shards", "diff", made, folder).exit_code == 0


@pytest.mark.parametrize(
    ("fault", "advice"),
    [("block", "shards gc drops"), ("header", "delete a shard file"), ("missing", "shards gc drops")],
)
def test_what_verify_advises_mends(folder, made, tiny_model, branching_log, fault, advice) -> None:
    path = folder / "shard-00000.safetensors"
    data = bytearray(path.read_bytes())
    data[{"block": -5, "header": 40, "missing": 0}[fault]] ^= 1
    path.unlink() if fault == "missing" else path.write_bytes(data)
    told = " ".join(kvtool("shards", "verify", folder).stdout.split())
    assert [text in told for text in ("shards gc drops", "delete a shard file")].count(True) == 1
    assert advice in told
    if fault == "header":
        path.unlink()
    else:
        assert kvtool("shards", "gc", folder).exit_code == 0
    kvtool("prewarm", "--model", tiny_model, "--logs", branching_log, "--block-size", 16, "--out", folder)
    assert kvtool("shards", "verify", folder).exit_code == 0
    assert {row.hash for row in open_shards(folder).rows} == {row.hash for row in open_shards(made).rows}


def test_signed_shards_are_demanded_and_kept_signed(
    folder, made, tiny_model, branching_log, tmp_path
) -> None:
    key, other = tmp_path / "key", tmp_path / "other"
    key.write_text("0123456789abcdef0123456789abcdef\n")
    other.write_text("another key, as long as the first\n")
    signed = tmp_path / "signed"
    unsigned = kvtool("shards", "verify", folder, "--signing-key", key)
    assert unsigned.exit_code == 2 and "signature: these shards are unsigned" in unsigned.stderr
    assert kvtool("shards", "merge", folder, "--out", signed, "--signing-key", key).exit_code == 0
    assert kvtool("shards", "verify", signed, "--signing-key", key).exit_code == 0
    wrong = kvtool("shards", "verify", signed, "--signing-key", other)
    assert wrong.exit_code == 2 and "signature: not made with this key" in wrong.stderr
    listed = json.loads(kvtool("shards", "ls", signed, "--output-format", "json").stdout)
    assert listed["signed"] and ", signed" in kvtool("shards", "ls", signed).stdout
    gone = kvtool("shards", "gc", signed, "--keep", 1)
    assert gone.exit_code == 2 and "these shards are signed" in gone.stderr
    assert kvtool("shards", "gc", signed, "--keep", "20kB", "--signing-key", key).exit_code == 0
    arguments = ["--model", tiny_model, "--logs", branching_log, "--block-size", 16, "--out", signed]
    refused = kvtool("prewarm", *arguments)
    assert refused.exit_code == 2 and "these shards are signed" in refused.stderr
    assert kvtool("prewarm", *arguments, "--signing-key", key).exit_code == 0
    assert kvtool("shards", "verify", signed, "--signing-key", key).exit_code == 0
    assert kvtool("shards", "diff", made, signed).exit_code == 0


def test_merge_keeps_the_reuse_model_of_the_busiest_source(folder, made, tmp_path) -> None:
    small = tmp_path / "small"
    shutil.copytree(made, small)
    assert kvtool("shards", "gc", small, "--keep", "20kB").exit_code == 0
    for path, until in ((folder, 5.0), (small, 9.0)):
        write_reuse(path, ReuseModel(TABLE, np.ones((1, 1)), np.ones(1), np.ones(1), until))
    for number, sources in enumerate([(folder, small), (small, folder), (small, made)]):
        merged = tmp_path / f"merged-{number}"
        assert kvtool("shards", "merge", *sources, "--out", merged).exit_code == 0
        model = read_reuse(merged)
        assert model is not None and model.until == (9.0 if number == 2 else 5.0)
        assert stat.S_IMODE((merged / "reuse.json").stat().st_mode) == 0o600
