"""What analyze promises of a log is what normalize makes of it, in every format, clean and broken."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvtool.analysis.analyze import AnalyzeConfig, analyze
from kvtool.commands.analyze import lint
from kvtool.lint.normalize import normalize
from kvtool.logs.reader import Row, open_log
from kvtool.logs.writer import write_log
from kvtool.prompts import paths
from kvtool.requests import Request
from kvtool.tokens import load_encoder

FORMATS = Path(__file__).resolve().parent.parent / "data/formats"
IDS_OR_ANSWERS = ("block-hashes", "token-ids", "openai-batch-output", "README")
SAMPLES = sorted(path for path in FORMATS.iterdir() if not path.name.startswith(IDS_OR_ANSWERS))
COPIES, BLOCK_SIZE = 6, 8
UNTOUCHED = (
    "claude-code",
    "gemini",
    "langfuse-autogen",
    "langfuse-langgraph",
    "otel-genai-genai-l",
    "swe-agent.traj",
    "tau-bench-few",
    "text",
    "vcr.yaml",
)
"""Samples with a row of each kind: what is planted into them has no second row to break."""


def _changed(value: Any, path: str, change: Callable[[Any], Any]) -> Any:
    steps = paths.parse(path)
    return value if paths.get(value, steps) is paths.MISSING else paths.changed(value, steps, change)


def _broken(row: Row, number: int) -> Any:
    """The row with a clock in its instructions, its tools turned round and their keys in another order."""
    value, done = row.value, set()

    def once(path: str, change: Callable[[Any], Any]) -> None:
        nonlocal value
        if path not in done:
            done.add(path)
            value = _changed(value, path, change)

    def clocked(text: Any) -> Any:
        said = f"Current time: 2026-03-03 10:{number % 60:02}:{number * 7 % 60:02}\n"
        return said + text if isinstance(text, str) else text

    def turned(tool: Any) -> Any:
        return dict(reversed(tool.items())) if number % 3 else tool

    for request in row.requests:
        for at, message in enumerate(request.messages or []):
            if message["role"] == "system":
                for path in (f"messages[{at}].content", f"messages[{at}].content[0].text"):
                    once(request.source_path(path), clocked)
        places = _tool_places(request)
        found = [paths.get(value, paths.parse(place)) for place in places]
        for place, tool in zip(places, reversed(found) if number % 2 else found, strict=True):
            if isinstance(tool, dict):
                once(place, lambda _, tool=tool: turned(tool))
    return value


def _tool_places(request: Request) -> list[str]:
    """Where the row has tools that have a name and can change places."""
    inside = [f"tools[{at}].function" for at, tool in enumerate(request.tools or []) if "function" in tool]
    known = request.paths or {}
    return [request.source_path(path if path in known else path[: -len(".function")]) for path in inside]


def _plant(sample: Path, target: Path) -> bool:
    """Write the sample's rows `COPIES` times, broken; whether anything could be."""
    log = open_log([str(sample)])
    rows = list(log.rows())
    written = [
        (row.source, _broken(row, number * len(rows) + at))
        for number in range(COPIES)
        for at, row in enumerate(rows)
    ]
    write_log(target, written, log)
    return any(new is not row.value for (_, new), row in zip(written, rows * COPIES, strict=True))


def _checked(path: Path, target: Path) -> tuple[set[str], float]:
    """(codes that promise a safe fix, token hit rate gained); the promises are held to what is made."""
    encoder = load_encoder("bytes")
    analysis = analyze(open_log([str(path)]), lambda: encoder, AnalyzeConfig((BLOCK_SIZE,)))
    priced, promised = lint(analysis, share_tenants=False)
    made = normalize(
        open_log([str(path)]),
        lambda: encoder,
        target,
        None,
        BLOCK_SIZE,
        False,
        lambda written: open_log([str(written)]),
        lambda _: None,
        [],
    ).data
    assert made["hit_rate"]["before"] == pytest.approx(analysis.rates.tokens, abs=1e-9)
    assert made["hit_rate"]["after"] == pytest.approx(promised, abs=1e-9)
    assert made["rows_unwritable"] == 0
    safe = {one.finding.code for one in priced if one.finding.fix.safe}
    # Edits that change no row are written out all the same: a server may have use for them.
    assert safe == ({edit["code"] for edit in made["edits"]} if made["rows_changed"] else set())
    return safe, promised - analysis.rates.tokens


@pytest.mark.parametrize("broken", [False, True], ids=["as it is", "broken"])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_what_analyze_promises_is_what_normalize_makes(sample: Path, broken: bool, tmp_path: Path) -> None:
    path = tmp_path / sample.name if broken else sample
    planted = broken and _plant(sample, path)
    safe, gained = _checked(path, tmp_path / f"fixed-{sample.name}")
    if planted and not sample.name.startswith(UNTOUCHED):
        assert safe and gained > 0


def test_geminis_functions_change_places_beside_its_own_tools(tmp_path: Path) -> None:
    functions = [
        {"name": name, "description": f"Looks up {name}s, one at a time, by name."}
        for name in ("tram", "bus")
    ]
    rows = []
    for number in range(6):
        own: list[dict[str, Any]] = [{"googleSearch": {}}, {"codeExecution": {}}]
        listed = functions[:: -1 if number % 2 else 1]
        tools = {
            0: [{"functionDeclarations": listed, "googleSearch": {}}],
            1: [*own, {"functionDeclarations": listed}],
            2: [{"functionDeclarations": [one]} for one in listed] + own,
        }
        asked = {"role": "user", "parts": [{"text": f"When is the next one to stop {number}?"}]}
        rows += [{"contents": [asked], "tools": tools[number % 3]} for _ in range(3)]
    log = tmp_path / "gemini.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    safe, gained = _checked(log, tmp_path / "fixed.jsonl")
    assert safe == {"KV201"} and gained > 0
    written = [json.loads(line) for line in (tmp_path / "fixed.jsonl").read_text().splitlines()]
    for row in written:
        names = [one["name"] for tool in row["tools"] for one in tool.get("functionDeclarations", ())]
        assert names == ["bus", "tram"]


def test_messages_that_stand_in_other_rows_promise_no_safe_fix(tmp_path: Path) -> None:
    """OpenTelemetry's message events: a span's prompt is spread over rows that are not its own."""
    rules = "Answer questions about trams in two sentences, and name the stop and the line each time. " * 4
    rows = []
    for number in range(8):
        ids = {"traceId": f"{number:032x}", "spanId": f"{number:016x}"}
        said = {"system": f"Time: 10:{number:02}:{number:02}\n{rules}", "user": f"Where is line {number}?"}
        records = [
            {
                **ids,
                "eventName": f"gen_ai.{role}.message",
                "body": {"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": text}}]}},
            }
            for role, text in said.items()
        ]
        span = {**ids, "startTimeUnixNano": str(number * 10**9 + 1), "attributes": [
            {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}]}  # fmt: skip
        rows += [
            {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]} for record in records
        ] + [{"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}]  # fmt: skip
    log = tmp_path / "events.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert _checked(log, tmp_path / "fixed.jsonl") == (set(), 0.0)


def test_a_text_log_promises_no_safe_fix(tmp_path: Path) -> None:
    rules = "Answer questions about trams in two sentences, and name the stop and the line each time. " * 4
    log = tmp_path / "text.jsonl"
    rows = [{"prompt": f"Time: 10:{n:02}:{n:02}\n{rules}\nWhere is line {n}?"} for n in range(12)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert _checked(log, tmp_path / "fixed.jsonl") == (set(), 0.0)
    encoder = load_encoder("bytes")
    analysis = analyze(open_log([str(log)]), lambda: encoder, AnalyzeConfig((BLOCK_SIZE,)))
    (found,) = lint(analysis, share_tenants=False)[0]
    assert (found.finding.code, found.finding.fix.safe, found.finding.lost_tokens > 500) == (
        "KV101",
        False,
        True,
    )
