"""Rewriting rows: changes led back through paths, refusals that change nothing."""

import json
from typing import Any

import pytest

from kvtool.lint.rewrite import Unwritable, rewritten
from kvtool.logs.reader import Row
from kvtool.prompts import Normalizer
from kvtool.prompts.edits import TAIL_SENTENCE, SlotEdit, ToolEdit
from kvtool.requests import Request, Source

CLOCK = SlotEdit(
    "KV101", "system", "", "Time: ", "\nHelp", True, False, TAIL_SENTENCE, "tail", ("Time: ", ""), True
)
NORMALIZER = Normalizer([CLOCK, ToolEdit("KV201", "sort-tools")])
SYSTEM = "Time: 10:15\nHelp people."
FIXED = f"Time: {TAIL_SENTENCE}\nHelp people."
WHERE = Source("f", 1)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_an_anthropic_row_keeps_its_shape() -> None:
    row = {
        "system": SYSTEM,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "id": 7,
    }
    request = Request(
        "r",
        WHERE,
        messages=[{"role": "system", "content": SYSTEM}, *row["messages"]],  # type: ignore[misc]
        paths={"messages[0].content": "system", "messages[1]": "messages[0]"},
    )
    assert rewritten(Row(WHERE, row, [request]), NORMALIZER) == {
        "system": FIXED,
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "Time: 10:15"}],
            }
        ],
        "id": 7,
    }


def test_json_in_a_string_stays_json_in_a_string() -> None:
    messages = [{"role": "system", "content": SYSTEM}, user("Hi")]
    row = {"input": json.dumps({"messages": messages})}
    request = Request("r", WHERE, messages=messages, paths={"messages": "input:json.messages"})
    new = rewritten(Row(WHERE, row, [request]), NORMALIZER)
    assert json.loads(new["input"])["messages"] == [
        {"role": "system", "content": FIXED},
        user("Hi\n\nTime: 10:15"),
    ]


def test_tools_keep_what_the_request_does_not_show() -> None:
    tools = [{"function": {"name": name}} for name in ("b", "a")]
    row = {"messages": [user("Hi")], "tools": [{**tool, "cache_control": {}} for tool in tools]}
    request = Request("r", WHERE, messages=row["messages"], tools=tools)  # type: ignore[arg-type]
    new = rewritten(Row(WHERE, row, [request]), NORMALIZER)
    assert [(tool["function"]["name"], "cache_control" in tool) for tool in new["tools"]] == [
        ("a", True),
        ("b", True),
    ]


def test_a_trajectory_gets_the_value_once_in_its_first_user_message() -> None:
    messages = [
        {"role": "system", "content": SYSTEM},
        user("Hi"),
        {"role": "assistant", "content": "Yes?"},
        user("Go"),
    ]
    row = {"traj": messages}
    requests = [Request(str(n), WHERE, messages=messages[:n], paths={"messages": "traj"}) for n in (2, 4)]
    new = rewritten(Row(WHERE, row, requests), NORMALIZER)
    assert [message["content"] for message in new["traj"]] == [FIXED, "Hi\n\nTime: 10:15", "Yes?", "Go"]


def test_a_row_that_says_something_else_is_left_alone() -> None:
    row = {"messages": [{"role": "system", "content": "Other text"}, user("Hi")]}
    request = Request("r", WHERE, messages=[{"role": "system", "content": SYSTEM}, user("Hi")])
    with pytest.raises(Unwritable, match=r"messages\[0\]\.content does not hold"):
        rewritten(Row(WHERE, row, [request]), NORMALIZER)
    assert row["messages"][0]["content"] == "Other text"


def test_an_unchanged_row_is_the_same_object() -> None:
    row = {"messages": [user("Hi")]}
    assert rewritten(Row(WHERE, row, [Request("r", WHERE, messages=row["messages"])]), NORMALIZER) is row
