"""The sample's report, made once, and a log whose every string is hostile."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvtool.cli import main

SAMPLE = Path(__file__).resolve().parents[3] / "samples/airline-chat.jsonl"

HOSTILE = (
    "</script><script>window.hacked = 1</script><!--<script> --> ]]> &lt; &quot; "
    "\u2028\u2029 \x00\x07\x1b[31m \u202egnp.exe\u202c \ud83d\ude00 {{ 7 * 7 }} {% raw %} ${7} `</style>` "
    "' onmouseover='window.hacked = 2 \" autofocus onfocus=\"window.hacked = 3 <img src=x onerror=hacked=4>"
    " javascript:alert(1) \u05e9\u05dc\u05d5\u05dd"
)


@dataclass(frozen=True)
class Made:
    """A page and the JSON document of the same run."""

    page: Path
    document: dict[str, Any]


def make(folder: Path, *arguments: str) -> Made:
    """Run kvtool with --report."""
    page = folder / "report.html"
    result = CliRunner().invoke(main, [*arguments, "--report", str(page), "--output-format", "json"])
    assert result.exit_code == 0, result.output
    return Made(page, json.loads(result.stdout))


def hostile_rows() -> list[dict[str, Any]]:
    """Conversations of two agents with a clock, a session id and shuffled tools; all text is hostile."""
    rows = []
    for number in range(24):
        session = number % 4
        tools = [
            {"type": "function", "function": {"name": f"t{at} {HOSTILE}", "description": HOSTILE}}
            for at in range(3)
        ]
        history = [
            {"role": role, "content": f"{text} {turn} {HOSTILE}"}
            for turn in range(number // 4)
            for role, text in (("user", "question"), ("assistant", "answer"))
        ]
        rows.append(
            {
                "id": f"{number} {HOSTILE}",
                "created": 1767600000 + 30 * number,
                "session_id": f"{session} {HOSTILE}",
                "model": HOSTILE,
                "messages": [
                    {
                        "role": "system",
                        "content": f"You help. {HOSTILE}\n"
                        f"The time is 2026-01-05 10:{number:02d}:{number + 7:02d}.\n"
                        + f"{HOSTILE} Rules follow. "
                        * 12,
                    },
                    *history,
                    {"role": "user", "content": f"secret-{session} {HOSTILE}"},
                ],
                "tools": tools[number % 3 :] + tools[: number % 3],
            }
        )
    return rows


@pytest.fixture(scope="session")
def airline(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The sample log's report."""
    return make(tmp_path_factory.mktemp("airline"), "analyze", str(SAMPLE), "--model", "embedded")


@pytest.fixture(scope="session", params=["masked", "shown"])
def hostile(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The hostile log's report, in a file with a hostile name, values masked or shown."""
    folder = tmp_path_factory.mktemp("hostile")
    log = folder / "<script>hacked=5<\u2028script> 'a' & $(b).jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in hostile_rows()))
    shown = ["--show-values"] if request.param == "shown" else []
    return make(folder, "analyze", str(log), "--tokenizer", "bytes", *shown)
