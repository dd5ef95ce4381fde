"""Logs without session ids and times: structural causes are found all the same, clean ones stay silent."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvtool.lint.check import find
from kvtool.requests import Request
from kvtool.tokens import PromptEncoder

Read = Callable[[Sequence[dict[str, Any]]], list[Request]]
Change = Callable[[int, list[dict[str, Any]]], None]
SAMPLES = Path(__file__).resolve().parent.parent.parent / "samples"
SUMMARY = "So far: the customer asked for a change of the booking and was told the price."


def logged(change: Change, turns: int = 6) -> list[dict[str, Any]]:
    """The sample's dialogues, turn by turn and interleaved; `change` edits each history (turn, messages)."""
    rows = []
    for number, run in enumerate(json.loads((SAMPLES / "airline-tau-bench.json").read_text())):
        calls = [at for at, message in enumerate(run["traj"]) if message["role"] == "assistant" and at]
        for turn, at in enumerate(calls[:turns]):
            messages = json.loads(json.dumps(run["traj"][:at]))
            change(turn, messages)
            rows.append((37 * number + 61 * turn, messages))
    return [{"messages": messages} for _, messages in sorted(rows, key=lambda row: row[0])]


def nothing(turn: int, messages: list[dict[str, Any]]) -> None:
    """A clean log."""


def compacted(turn: int, messages: list[dict[str, Any]]) -> None:
    if turn >= 3:
        messages[1:5] = [{"role": "user", "content": SUMMARY}]


def windowed(turn: int, messages: list[dict[str, Any]]) -> None:
    messages[1:] = messages[1:][-3:]


def other_line_ends(turn: int, messages: list[dict[str, Any]]) -> None:
    text = "Good day.\n" + messages[1]["content"]
    messages[1]["content"] = text.replace("\n", "\r\n") if turn % 2 else text


def noted(turn: int, messages: list[dict[str, Any]]) -> None:
    if turn % 3 == 1:
        messages[1]["content"] += "\n\n[NOTE: plan mode is on; do not book anything yet.]"


@pytest.mark.parametrize(
    ("change", "code", "path"),
    [
        (compacted, "KV404", "messages[1].content"),
        (windowed, "KV403", "messages[1].content"),
        (other_line_ends, "KV407", "messages[1].content"),
        (noted, "KV401", "messages[1].content"),
    ],
)
def test_a_broken_history_is_found(
    change: Change, code: str, path: str, read: Read, encoder: PromptEncoder
) -> None:
    loud = [one for one in find(read(logged(change)), encoder, 32) if one.severity != "info"]
    assert [(one.code, one.location.path) for one in loud] == [(code, path)]


def test_a_clean_log_is_silent(read: Read, encoder: PromptEncoder) -> None:
    assert find(read(logged(nothing)), encoder, 32) == []


def test_a_dialogue_that_starts_over_is_silent(read: Read, encoder: PromptEncoder) -> None:
    rows = logged(nothing)
    again = [row for row in rows if len(row["messages"]) == 2]
    assert again
    assert find(read([*rows, *again]), encoder, 32) == []


def test_a_time_zone_is_the_users(read: Read, encoder: PromptEncoder) -> None:
    zones = ("Europe/Madrid", "Asia/Tokyo", "America/Lima")
    rows = logged(nothing)
    first = {row["messages"][1]["content"]: number for number, row in enumerate(rows)}
    for row in rows:
        line = f"Time zone of the user: {zones[first[row['messages'][1]['content']] % 3]}\n"
        row["messages"][0]["content"] = line + row["messages"][0]["content"]
    found = [one for one in find(read(rows), encoder, 32) if one.severity != "info"]
    assert [(one.code, one.location.start) for one in found] == [("KV107", 23)]
