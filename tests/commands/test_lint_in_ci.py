"""CI manners: kvtool's own sample prompts, the action, the hook and the how-to that shows them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from kvtool.cli import main
from kvtool.commands.lint import command

ROOT = Path(__file__).resolve().parent.parent.parent
HOW_TO = (ROOT / "docs/how-to/lint-in-ci.md").read_text(encoding="utf-8")


def options_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


def known_options() -> set[str]:
    return {
        name
        for one in command.params
        if isinstance(one, click.Option)
        for name in (*one.opts, *one.secondary_opts)
    }


def test_kvtools_own_prompts_have_no_finding() -> None:
    own = [str(ROOT / "samples/airline-tau-bench.json"), str(ROOT / "kvtool/lint/samples.py")]
    result = CliRunner().invoke(main, ["lint", *own, "--fail-on", "info"])
    assert result.exit_code == 0, result.output
    assert "0 findings in 1 log and 1 template" in result.output


def test_the_sample_log_has_what_was_planted_in_it_and_nothing_else() -> None:
    log = str(ROOT / "samples/airline-chat.jsonl")
    result = CliRunner().invoke(main, ["lint", log, "--output-format", "concise"])
    assert result.exit_code == 1
    assert set(re.findall(r"\bKV\d{3}\b", result.stdout)) == {"KV101", "KV201"}


def test_the_action_uses_options_that_exist_and_passes_inputs_as_variables() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    runs = [step["run"] for step in action["runs"]["steps"] if "run" in step]
    linting = [line for line in runs if "kvtool lint" in line]
    assert len(linting) == 2
    assert options_in(" ".join(linting)) <= known_options()
    assert not any("${{" in line for line in runs)  # no shell injection through an input


def test_the_steps_of_the_action_run_as_they_are_written(tmp_path: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    steps = [step for step in action["runs"]["steps"] if "kvtool lint" in step.get("run", "")]
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts/agent.j2").write_text("At {{ now() }}.\n" + "Never invent a price. " * 40)
    (tmp_path / "kvtool").write_text(f'#!/bin/sh\nexec {sys.executable} -m kvtool "$@"\n')
    (tmp_path / "kvtool").chmod(0o755)
    given = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "PATHS": "prompts",
        "ARGS": "--fail-on warning --ignore KV107,KV302",
    }
    ran = [
        subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=tmp_path,
            env=given,
            capture_output=True,
            text=True,
            check=False,
        )
        for step in steps
    ]
    assert [one.returncode for one in ran] == [0, 1], ran
    assert "- **KV101 clock-time**" in (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert ran[1].stdout.startswith("::warning file=prompts/agent.j2,line=1")


def test_the_summary_is_markdown(tmp_path: Path) -> None:
    out = tmp_path / "summary.md"
    log = str(ROOT / "samples/airline-chat.jsonl")
    arguments = ["lint", log, "--exit-zero", "--output-format", "markdown", "--output-file", str(out)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "- **KV101 clock-time** (error)" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["pre-commit", "GitHub", "GitLab", "pytest"])
def test_the_how_to_shows_each_in_about_ten_lines(name: str) -> None:
    ((language, shown),) = re.findall(rf"## {name}\n.*?```(\w+)\n(.*?)```", HOW_TO, re.DOTALL)
    assert 5 <= len(shown.splitlines()) <= 12
    assert options_in(re.sub(r"^.*pip install.*$", "", shown, flags=re.M)) <= known_options()
    if language == "yaml":
        assert yaml.safe_load(shown)
    else:
        compile(shown, "example", "exec")
