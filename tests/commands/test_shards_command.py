"""kvtool shards as users call it: exit codes, the list of bad blocks, JSON and terminal."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvtool.cli import main
from kvtool.engine.storage.shards import open_shards


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
