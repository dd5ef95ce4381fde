"""Every kvtool line of README and docs: the cheap ones run in the reader's order, the others must parse.

`pytest -m slow` runs them all, with a server in the background where a page starts one.
"""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kvtool.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
GUIDES = [ROOT / "docs/tutorial.md", *sorted((ROOT / "docs/how-to").glob("*.md"))]
GUIDES += sorted((ROOT / "docs/explanation").glob("*.md"))
PAGES = [README, *GUIDES]
CHEAP = ("analyze", "lint", "normalize", "simulate")


def lines_of(page: Path) -> list[str]:
    """The kvtool lines of a page's plain fences."""
    fences = re.findall(r"```\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return [line for fence in fences for line in fence.splitlines() if line.startswith("kvtool ")]


WITH_LINES = [page for page in PAGES if lines_of(page)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the reader stands: the samples at hand."""
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", WITH_LINES, ids=lambda page: page.stem)
def test_the_lines_work_in_the_readers_order(page: Path, folder: Path) -> None:
    """One test a page: a line may read what an earlier one wrote."""
    (folder / "shards").mkdir()
    for text in lines_of(page):
        line = [word for word in shlex.split(text, comments=True)[1:] if word != "&"]
        if line[0] in CHEAP:
            result = CliRunner().invoke(main, line)
            # lint's answer to a log with findings
            assert result.exit_code == 0, f"{text}: {result.output}"
            assert result.stdout, text
        else:
            command, words = COMMANDS.load(line[0]), line[1:]
            if isinstance(command, click.Group):
                command, words = command.commands[words[0]], words[1:]
            above = main.make_context("kvtool", [], resilient_parsing=True)
            assert command.make_context(line[0], words, parent=above).params, text


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_LINES, ids=lambda page: page.stem)
def test_all_lines_work(page: Path, folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = ["set -e", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
    for text in lines_of(page):
        line = text.replace("8000", port)
        if "kvtool serve" in line:
            script.append(line.split("#")[0].removesuffix("&").rstrip() + " >server.log 2>&1 &")
            script.append(
                f"for i in $(seq 300); do curl -sf http://127.0.0.1:{port}/health && break; sleep 1; done"
            )
        else:
            script.append(line)
    bin_folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-2000:]}"


def test_the_findings_shown_are_those_of_the_sample(folder: Path) -> None:
    shown = re.findall(r"(KV\d+ .+): ([\d,]+) tokens lost", README.read_text(encoding="utf-8"))
    result = CliRunner().invoke(main, ["analyze", "samples/airline-chat.jsonl", "--output-format", "json"])
    found = json.loads(result.stdout)["findings"]
    assert shown == [(f"{one['code']} {one['message']}", f"{one['lost_tokens']:,}") for one in found]


def test_every_command_is_shown() -> None:
    shown = {shlex.split(line)[1] for line in lines_of(README)} | {"demo"}
    assert shown == set(COMMANDS.names())


def test_the_site_builds_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--quiet",
            "--site-dir",
            str(tmp_path / "site"),
        ],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "From a log to a served shard" in (tmp_path / "site/tutorial/index.html").read_text(
        encoding="utf-8"
    )


def test_every_page_can_be_found() -> None:
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    overview = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    for page in (*GUIDES, *(ROOT / "docs/reference").glob("*.md")):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert name in listed and name in overview, name
