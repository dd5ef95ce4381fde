"""Findings end to end: prices against the log without the breakage, hidden slots, mixed traffic."""

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtool.lint.check import edits_of as all_edits
from kvtool.lint.check import examine, find, normalized, normalized_requests
from kvtool.lint.corpus import arrival_order
from kvtool.lint.price import replayed
from kvtool.lint.samples import AGENT
from kvtool.prompts import Normalizer
from kvtool.requests import Request
from kvtool.tokens import PromptEncoder

Read = Callable[[Sequence[dict[str, Any]]], list[Request]]
SAMPLES = Path(__file__).resolve().parent.parent.parent / "samples"
BLOCK_SIZE = 32
START = 1_772_530_000


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Clean requests of the sample's dialogues, with times, sessions and tools."""
    tools = json.loads((SAMPLES / "airline-chat.jsonl").read_text().splitlines()[0])["tools"]
    clean = []
    for number, run in enumerate(json.loads((SAMPLES / "airline-tau-bench.json").read_text())):
        for turn, message in enumerate(run["traj"]):
            if message["role"] == "assistant" and turn:
                clean.append(
                    {
                        "messages": run["traj"][:turn],
                        "tools": tools,
                        "session_id": f"s{number}",
                        "timestamp": START + 40 * turn + 17 * number,
                    }
                )
    return sorted(clean, key=lambda row: row["timestamp"])


def rate(requests: list[Request], encoder: PromptEncoder) -> float:
    return replayed(requests, arrival_order(requests), encoder, BLOCK_SIZE).tokens


def apart(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A deep copy in which no two rows share a message."""
    copied: list[dict[str, Any]] = json.loads(json.dumps(rows))
    return copied


def with_clock(rows: list[dict[str, Any]], line: str = "Current time: {}\n") -> list[dict[str, Any]]:
    planted = apart(rows)
    for row in planted:
        said = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(row["timestamp"]))
        row["messages"][0]["content"] = line.format(said) + row["messages"][0]["content"]
    return planted


def test_a_clean_log_has_no_finding(rows: list[dict[str, Any]], read: Read, encoder: PromptEncoder) -> None:
    assert find(read(rows), encoder, BLOCK_SIZE) == []


def test_a_clock_is_placed_priced_and_removed(
    rows: list[dict[str, Any]], read: Read, encoder: PromptEncoder
) -> None:
    clean, planted = rate(read(rows), encoder), read(with_clock(rows))
    (finding,) = find(planted, encoder, BLOCK_SIZE)
    place = finding.location
    assert (finding.code, finding.severity, finding.fix.safe) == ("KV101", "error", True)
    assert (place.row, place.path, place.start, place.end) == (1, "messages[0].content", 14, 33)
    assert finding.slot == "Current time: {clock-time}"
    assert abs(finding.hit_rate_if_fixed - clean) < 0.001
    assert finding.distinct_values == len({row["timestamp"] for row in rows})
    assert finding.lost_tokens > 0.8 * clean * sum(len(ids) for ids in encoder.encode(planted))
    assert rate(planted, encoder) == 0.0
    assert abs(normalized(planted, encoder, BLOCK_SIZE) - clean) < 0.01


def test_a_slot_behind_another_one_is_found_too(
    rows: list[dict[str, Any]], read: Read, encoder: PromptEncoder
) -> None:
    planted = with_clock(rows, "Current time: {}\n")
    for number, row in enumerate(planted):
        text = row["messages"][0]["content"]
        row["messages"][0]["content"] = text.replace("# Airline", f"Trace: {number:08x}f3a9\n# Airline", 1)
    findings = find(read(planted), encoder, BLOCK_SIZE)
    assert sorted(finding.code for finding in findings) == ["KV101", "KV103"]
    assert all(finding.severity == "error" for finding in findings)
    assert {finding.hit_rate_if_fixed for finding in findings} == {0.0}  # alone, neither repair helps


def test_helpers_in_the_same_log_are_not_compared_with_the_agent(
    rows: list[dict[str, Any]], read: Read, encoder: PromptEncoder
) -> None:
    title = {"role": "system", "content": "Find a title of at most five words for this conversation."}
    mixed = []
    for row in rows:
        mixed.append(row)
        helper = {key: value for key, value in row.items() if key != "tools"}
        mixed.append({**helper, "messages": [title, row["messages"][1]], "timestamp": row["timestamp"] + 1})
    assert [one for one in find(read(mixed), encoder, BLOCK_SIZE) if one.severity != "info"] == []


def test_ids_that_no_template_prints_are_no_finding(
    rows: list[dict[str, Any]], read: Read, encoder: PromptEncoder
) -> None:
    planted = apart(rows)
    for number, row in enumerate(planted):
        row["request_id"] = f"r{number}"
        for place, message in enumerate(row["messages"]):
            message["id"] = f"msg_{number}_{place}"
            for call in message.get("tool_calls") or []:
                call["id"] = f"call_{number}_{place}"
    assert find(read(planted), encoder, BLOCK_SIZE) == []


def test_normalizing_twice_is_normalizing_once(
    rows: list[dict[str, Any]], read: Read, encoder: PromptEncoder
) -> None:
    rng = np.random.default_rng(5)
    planted = with_clock(rows)
    for row in planted[::3]:
        row["tools"] = [row["tools"][place] for place in rng.permutation(len(row["tools"]))]
    requests = read(planted)
    edits = all_edits(examine(requests, encoder, BLOCK_SIZE))
    once = normalized_requests(requests, Normalizer(edits))
    assert normalized_requests(once, Normalizer(edits)) == once
    assert all_edits(examine(once, encoder, BLOCK_SIZE)) == []


def test_a_clock_in_half_of_the_sessions_is_a_clock(
    rows: list[dict[str, Any]], read: Read, encoder: PromptEncoder
) -> None:
    planted = with_clock(rows, "The wall clock of the office shows {} right now.\n")
    mixed = [
        clocked if int(row["session_id"][1:]) % 2 else row for row, clocked in zip(rows, planted, strict=True)
    ]
    (finding,) = find(read(mixed), encoder, BLOCK_SIZE)
    assert finding.code == "KV101"
    first = next(number for number, row in enumerate(mixed) if row is not rows[number])
    assert finding.location.row == first + 1
    text = mixed[first]["messages"][0]["content"]
    said = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(mixed[first]["timestamp"]))
    assert text[finding.location.start : finding.location.end] == said
    assert finding.hit_rate_if_fixed == pytest.approx(rate(read(rows), encoder), abs=0.002)
    assert normalized(read(mixed), encoder, BLOCK_SIZE) > 0.9 * finding.hit_rate_if_fixed


def test_incomplete_requests_are_not_judged(
    rows: list[dict[str, Any]], read: Read, encoder: PromptEncoder
) -> None:
    """What such a log does not show may well be what explains a difference."""
    requests = read(with_clock(rows))
    assert find(requests, encoder, BLOCK_SIZE)
    cut = [dataclasses.replace(request, incomplete="the log is cut") for request in requests]
    assert find(cut, encoder, BLOCK_SIZE) == []


def test_a_field_exchanged_altogether_is_a_slot(read: Read, encoder: PromptEncoder) -> None:
    """Two system messages: the second one is another text in every conversation."""
    memories = [
        "Likes the aisle seat, travels with a dog, speaks Catalan.",
        "月曜日は返事をしない。",
        "None so far!",
    ]
    rows = [
        {
            "messages": [
                {"role": "system", "content": memory},
                {"role": "system", "content": AGENT * 2},
                {"role": "user", "content": f"Question {n}?"},
            ],
            "timestamp": 1_740_000_000 + n,
        }
        for n, memory in enumerate(memories * 3)
    ]
    found = find(read(rows), encoder, 32)
    assert [(one.location.path, one.location.start, one.location.end) for one in found] == [
        ("messages[0].content", 0, len(memories[0]))
    ]


def test_a_prompt_deployed_anew_is_no_slot(read: Read, encoder: PromptEncoder) -> None:
    def rows(versions: Sequence[str]) -> list[dict[str, Any]]:
        return [
            {
                "messages": [
                    {"role": "system", "content": f"{version}\n{AGENT * 2}"},
                    {"role": "user", "content": f"Question {n}, about bag {n}?"},
                ],
                "session_id": str(n),
                "timestamp": 1_740_000_000 + n,
            }
            for n, version in enumerate(versions)
        ]

    old, new = "Be friendly and brief today.", "Be friendly and name the section."
    assert find(read(rows([old] * 4 + [new] * 4)), encoder, 32) == []
    assert [one.code for one in find(read(rows([old, new] * 4)), encoder, 32)] == ["KV100"]


def test_tokens_of_the_text_taken_away_are_no_loss(read: Read, encoder: PromptEncoder) -> None:
    """A long block that every session keeps: what it hides from others is lost, not what it held itself."""
    rows = [
        {
            "messages": [
                {"role": "system", "content": f"Your task: {chr(65 + s) * 300} and so on.\n{AGENT * 3}"},
                {"role": "user", "content": "Hi"},
                *[{"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Go on"}] * turn,
            ],
            "session_id": str(s),
            "timestamp": 1_740_000_000 + 10 * s + turn,
        }
        for s in range(4)
        for turn in range(3)
    ]
    (found,) = find(read(rows), encoder, 32)
    behind = len(AGENT * 3) // 4
    assert 2 * behind < found.lost_tokens <= 3 * (behind + 32)  # three sessions compute it once too often


def test_a_value_of_spaces_is_found_where_it_stands(
    read: Read, rows: list[dict[str, Any]], encoder: PromptEncoder
) -> None:
    planted = apart(rows)
    for number, row in enumerate(planted):
        system = row["messages"][0]
        system["content"] = f"Be brief.{'  ' if number % 2 else ' '}Be kind.\n" + system["content"]
    (one,) = find(read(planted), encoder, BLOCK_SIZE)
    place = one.location
    text = planted[place.row - 1]["messages"][0]["content"]
    assert (place.path, place.end - place.start) == ("messages[0].content", 1)
    assert text[: place.end] == "Be brief.  "
