"""docs/reference/json.md against what the commands print: no field may be missing or renamed."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import ValidationError

from kvtool.cli import main

ROOT = Path(__file__).resolve().parent.parent
Check = Callable[[dict[str, Any]], None]
PAGE = (ROOT / "docs/reference/json.md").read_text(encoding="utf-8")


def documented(schema: str) -> set[str]:
    """Field names in the block of a schema, with those of FINDING where it refers to it."""
    (block,) = (block for block in re.findall(r"```\n(.*?)```", PAGE, re.DOTALL) if f'"{schema}"' in block)
    if "FINDING" in block:
        (finding,) = re.findall(r"## FINDING.*?```\n(.*?)```", PAGE, re.DOTALL)
        block += finding
    return set(re.findall(r'"(\w+)":', block))


def fields(document: Any) -> set[str]:
    """Every field name in a document."""
    if isinstance(document, dict):
        return set(document).union(*map(fields, document.values()))
    if isinstance(document, list):
        return set().union(*map(fields, document))
    return set()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Part of the sample, and a row that cannot be read."""
    path = tmp_path_factory.mktemp("json") / "log.jsonl"
    lines = (ROOT / "samples/airline-chat.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:20]) + '{"messages": 7}\n', encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ("kvtool.analysis/1", ["analyze", "LOG"]),
        ("kvtool.lint/1", ["lint", "LOG", "--exit-zero"]),
        ("kvtool.normalization/1", ["normalize", "LOG", "-o", "OUT"]),
        ("kvtool.simulation/1", ["simulate", "LOG", "--capacity", "10%"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_documented_fields_are_printed(
    schema: str, arguments: list[str], log: Path, tmp_path: Path, valid_json: Check
) -> None:
    places = {"LOG": str(log), "OUT": str(tmp_path / "out.jsonl")}
    line = [places.get(word, word) for word in arguments]
    result = CliRunner().invoke(main, [*line, "--output-format", "json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["schema"] == schema
    assert documented(schema) - fields(document) == set()
    valid_json(document)


@pytest.mark.parametrize(
    "line",
    [
        "analyze TRACE",
        "analyze LOG --tokenizer bytes",
        "lint prompt.txt",
        "simulate TRACE --capacity 5% --policy cost --replicas 2 --routing prefix",
        "simulate TRACE --tiers device=5%,host=10% --policy lru --train-fraction 50% --prefetch",
        "simulate LOG --capacity 50% --train-fraction 0.5 --model MODEL",
        "simulate TRACE --capacity 5% --prefill-rate 8000 --decode-rate 50",
    ],
)
def test_documents_are_valid_in_other_settings(
    line: str, log: Path, tiny_model: Path, tmp_path: Path, valid_json: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prompt.txt").write_text("It is {now}.\n" + "Rules. " * 2000, encoding="utf-8")
    places = {"LOG": str(log), "TRACE": str(ROOT / "samples/mooncake-conversation.jsonl")}
    places["MODEL"] = str(tiny_model)
    words = [places.get(word, word) for word in line.split()]
    result = CliRunner().invoke(main, [*words, "--output-format", "json"])
    assert result.exit_code in (0, 1), result.output
    valid_json(json.loads(result.stdout))


def test_shards_documents_are_valid(
    branching_log: Path, tiny_model: Path, tmp_path: Path, valid_json: Check
) -> None:
    made = tmp_path / "shards"

    def run(*words: object) -> dict[str, Any]:
        result = CliRunner().invoke(main, [*map(str, words), "--output-format", "json"])
        assert result.exit_code in (0, 1), result.output
        document: dict[str, Any] = json.loads(result.stdout)
        valid_json(document)
        return document

    prewarm = ("prewarm", "--model", tiny_model, "--logs", branching_log, "--block-size", 16)
    assert "new_blocks" not in run(*prewarm, "--dry-run", "--out", made)
    assert run(*prewarm, "--codec", "raw", "--out", made)["new_blocks"] > 0
    run("shards", "ls", made)
    run("shards", "verify", made)
    run("shards", "diff", made, made)
    run("shards", "gc", made)
    (shard, *_) = sorted(made.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    assert run("shards", "verify", made)["faults"]


def test_schemas_are_those_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written by docs/write_schemas.py and committed."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    import write_schemas

    folder = ROOT / "docs/reference/schemas"
    assert {path.name: path.read_text() for path in folder.iterdir()} == write_schemas.files()


def test_a_schema_refuses_what_the_page_does_not_promise(valid_json: Check, log: Path) -> None:
    result = CliRunner().invoke(main, ["analyze", str(log), "--output-format", "json"])
    document = json.loads(result.stdout)
    for field, value in (("block_size", "32"), ("hit_rate", None), ("findings", [{"code": "KV101"}])):
        with pytest.raises(ValidationError):
            valid_json({**document, field: value})
