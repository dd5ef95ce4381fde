"""docs/reference/json.md against what the commands print: no field may be missing or renamed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvtool.cli import main

ROOT = Path(__file__).resolve().parent.parent
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
def test_documented_fields_are_printed(schema: str, arguments: list[str], log: Path, tmp_path: Path) -> None:
    places = {"LOG": str(log), "OUT": str(tmp_path / "out.jsonl")}
    line = [places.get(word, word) for word in arguments]
    result = CliRunner().invoke(main, [*line, "--output-format", "json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["schema"] == schema
    assert documented(schema) - fields(document) == set()
