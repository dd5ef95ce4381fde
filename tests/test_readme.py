"""README's command lines: the cheap ones run, in order, the others must at least parse."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kvtool.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parent.parent
LINES = [
    shlex.split(line, comments=True)[1:]
    for fence in re.findall(r"```\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    for line in fence.splitlines()
    if line.startswith("kvtool ")
]
CHEAP = ("analyze", "lint", "normalize", "simulate")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the reader stands: the samples at hand."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "samples").symlink_to(ROOT / "samples")
    (folder / "shards").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def test_the_lines_work_in_the_readers_order(folder: Path) -> None:
    """One test: a line may read what an earlier one wrote."""
    for line in LINES:
        if line[0] in CHEAP:
            result = CliRunner().invoke(main, line)
            assert result.exit_code == 0, f"{line}: {result.output}"
            assert result.stdout, line
        else:
            command, words = COMMANDS.load(line[0]), line[1:]
            if isinstance(command, click.Group):
                command, words = command.commands[words[0]], words[1:]
            assert command.make_context(line[0], words).params, line


def test_the_findings_shown_are_those_of_the_sample(folder: Path) -> None:
    shown = re.findall(r"(KV\d+ .+): ([\d,]+) tokens lost", (ROOT / "README.md").read_text(encoding="utf-8"))
    result = CliRunner().invoke(main, ["analyze", "samples/airline-chat.jsonl", "--output-format", "json"])
    found = json.loads(result.stdout)["findings"]
    assert shown == [(f"{one['code']} {one['message']}", f"{one['lost_tokens']:,}") for one in found]


def test_every_command_is_shown() -> None:
    shown = {line[0] for line in LINES} | {"demo"}
    assert shown == set(COMMANDS.names())
