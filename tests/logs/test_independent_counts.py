"""Every file is sniffed right and holds as many requests as a plain script counts, which shares no code."""

import gzip
import json
import zipfile
from pathlib import Path

import pytest
import yaml

from kvtool.errors import KvtoolError
from kvtool.logs.reader import open_log

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "tests/data/formats"
PUBLIC = ROOT.parent / "shared/data"
"""More public logs than a repository should carry; they are counted where they are at hand."""

FORMAT_OF = {
    "mooncake": "block-hashes",
    "miniswe": "text",
    "pydantic-ai-cassettes": "vcr",
}


def documents(path: Path):
    """All JSON values in a file."""
    if path.suffix == ".eval":
        with zipfile.ZipFile(path) as archive:
            return [
                json.loads(archive.read(name)) for name in archive.namelist() if name.startswith("samples/")
            ]
    if path.suffix == ".yaml":
        return [yaml.safe_load(path.read_text())]
    text = path.read_text()
    try:
        value = json.loads(text)
        return value if isinstance(value, list) else [value]
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


def spans_and_logs(row):
    for outer, middle, inner in (
        ("resourceSpans", "scopeSpans", "spans"),
        ("resourceLogs", "scopeLogs", "logRecords"),
    ):
        for resource in row.get(outer, []):
            for scope in resource[middle]:
                yield from scope[inner]


def count(name: str, rows: list) -> int:
    match name:
        case "tau-bench":
            if "traj" in rows[0]:
                return sum(message["role"] == "assistant" for row in rows for message in row["traj"])
            return sum(row["messages_display"].count("\nassistant: ") for row in rows)
        case "sharegpt":
            turns = [turn["from"] for row in rows for turn in row["conversations"][1:]]
            return turns.count("gpt") + turns.count("function_call")
        case "langfuse":
            return sum(one["type"] == "GENERATION" for row in rows for one in row["observations"])
        case "inspect-ai":
            samples = [sample for row in rows for sample in row.get("samples", [row])]
            return sum(event["event"] == "model" for sample in samples for event in sample["events"])
        case "swe-agent":
            return sum(len(row["trajectory"]) for row in rows)
        case "vcr":
            ends = ("/chat/completions", "/responses", "/v1/messages?beta=true", ":generateContent")
            return sum(one["request"]["uri"].endswith(ends) for row in rows for one in row["interactions"])
        case "otel-genai":
            calls = [one for row in rows for one in spans_and_logs(row)]
            told = [
                one
                for one in calls
                if str(one.get("eventName")).startswith("gen_ai.")
                or any(
                    a["key"] in ("gen_ai.input.messages", "llm.input_messages.0.message.role")
                    for a in one["attributes"]
                )
            ]
            return len({(one["traceId"], one["spanId"]) for one in told})
        case "claude-code":
            objects = [row for row in rows if isinstance(row, dict)]
            lines = [line for row in objects for line in row.get("loglines", [row])]
            turns = [line for line in lines if line.get("type") in ("user", "assistant")]
            return sum(
                turn["type"] == "assistant"
                and any(earlier.get("sessionId") == turn.get("sessionId") for earlier in turns[:index])
                for index, turn in enumerate(turns)
            )
        case "openai-batch":
            return sum("body" in row for row in rows)
    return len(rows)


def logs(folder: Path):
    suffixes = (".jsonl", ".json", ".yaml", ".traj", ".eval")
    return sorted(path for path in folder.rglob("*") if path.suffix in suffixes)


def expected_format(path: Path) -> str:
    names = [path.name, *(parent.name for parent in path.parents)]
    known = sorted(
        (one.stem for one in (ROOT / "kvtool/logs/formats").glob("[!_]*.py")), key=len, reverse=True
    )
    for name in names[:2]:
        if name in FORMAT_OF:
            return FORMAT_OF[name]
        for one in known:
            if name.startswith(one.replace("_", "-")):
                return one.replace("_", "-")
    raise AssertionError(f"no format expected for {path}")


@pytest.mark.parametrize("path", [*logs(SAMPLES), *logs(PUBLIC)], ids=lambda path: path.name)
def test_the_format_and_the_number_of_requests(path):
    if path.name.endswith("_tools.json"):  # tool schemas beside the tau-bench logs
        with pytest.raises(KvtoolError, match="no known log format"):
            open_log([str(path)])
        return
    log = open_log([str(path)])
    assert log.format == expected_format(path)
    expected = count(log.format, documents(path))
    if expected == 0:
        with pytest.raises(KvtoolError, match="no request could be read"):
            list(log)
        return
    assert sum(1 for _ in log) == expected


def test_a_folder_is_the_sum_of_its_files():
    log = open_log([str(SAMPLES)])
    requests = sum(1 for _ in log)
    assert requests == sum(count(expected_format(path), documents(path)) for path in logs(SAMPLES))
    assert len(log.files) == len(logs(SAMPLES))


def test_compressed_copies_count_the_same(tmp_path):
    for path in logs(SAMPLES):
        if path.suffix in (".jsonl", ".json", ".yaml") and "output" not in path.name:
            copy = tmp_path / f"{path.name}.gz"
            copy.write_bytes(gzip.compress(path.read_bytes()))
            assert sum(1 for _ in open_log([str(copy)])) == count(expected_format(path), documents(path))
