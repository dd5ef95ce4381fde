"""The normalizer: safe, idempotent, valid for the API, refusing what it does not know."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtool.errors import KvtoolError
from kvtool.prompts import Normalizer
from kvtool.prompts.edits import FIRST_SENTENCE, TAIL_SENTENCE, SlotEdit, TextEdit, ToolEdit

CLOCK = SlotEdit(
    "KV101",
    "system",
    "",
    "Current time: ",
    "\nYou are",
    True,
    False,
    TAIL_SENTENCE,
    "tail",
    ("Current time: ", ""),
    True,
)
USER = SlotEdit(
    "KV107",
    "system",
    "",
    "Customer: ",
    "",
    False,
    True,
    FIRST_SENTENCE,
    "first-user",
    ("Customer: ", ""),
    True,
)
IN_TOOL = SlotEdit(
    "KV101",
    "tool search",
    "function.description",
    "It is ",
    ".",
    False,
    True,
    TAIL_SENTENCE,
    "tail",
    ("It is ", "."),
    True,
)
SYSTEM = {"role": "system", "content": "Current time: 10:15\nYou are an agent.\nCustomer: Ann"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"b":1, "a":2}'}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "two flights"}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "search", "description": "Search flights. It is 10:15.", "parameters": {}},
    },
    {"type": "function", "function": {"name": "book", "description": "Book a flight.", "parameters": {}}},
]


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_the_value_moves_behind_the_last_user_message() -> None:
    messages, _ = Normalizer([CLOCK]).apply([SYSTEM, user("Hi")], None)
    assert messages[0]["content"] == f"Current time: {TAIL_SENTENCE}\nYou are an agent.\nCustomer: Ann"
    assert messages[1:] == [user("Hi\n\nCurrent time: 10:15")]


def test_behind_tool_results_it_becomes_a_message_so_that_earlier_steps_stay_cached() -> None:
    history = [SYSTEM, user("Hi"), CALL, RESULT]
    messages, _ = Normalizer([CLOCK]).apply(history, None)
    assert messages[1:4] == history[1:]
    assert messages[4:] == [user("Current time: 10:15")]


def test_a_prefilled_answer_stays_last() -> None:
    messages, _ = Normalizer([CLOCK]).apply(
        [SYSTEM, user("Hi"), {"role": "assistant", "content": "Well"}], None
    )
    assert [m["content"] for m in messages[1:]] == ["Hi\n\nCurrent time: 10:15", "Well"]


def test_a_value_of_the_whole_session_goes_to_its_first_message() -> None:
    history = [SYSTEM, user([{"type": "text", "text": "Hi"}]), CALL, RESULT]
    messages, _ = Normalizer([USER]).apply(history, None)
    assert messages[1]["content"] == [
        {"type": "text", "text": "Hi"},
        {"type": "text", "text": "Customer: Ann"},
    ]
    assert messages[2:] == history[2:]


def test_tools_are_sorted_and_their_clocks_moved() -> None:
    messages, tools = Normalizer([IN_TOOL, ToolEdit("KV201", "sort-tools")]).apply(
        [SYSTEM, user("Hi")], TOOLS
    )
    assert tools is not None
    assert [tool["function"]["name"] for tool in tools] == ["book", "search"]
    assert tools[1]["function"]["description"] == f"Search flights. It is {TAIL_SENTENCE}."
    assert messages[-1]["content"] == "Hi\n\nIt is 10:15."
    assert TOOLS[0]["function"]["description"] == "Search flights. It is 10:15."


def test_other_prompts_are_left_alone() -> None:
    other = [{"role": "system", "content": "Translate. Current time: 10:15"}, user("Hi")]
    assert Normalizer([CLOCK]).apply(other, None) == (other, None)
    alone = [SYSTEM]
    assert Normalizer([CLOCK]).apply(alone, None)[0] == alone  # nowhere to move the value to


def test_canonical_forms() -> None:
    edits = [TextEdit("KV407", "canonical-text"), TextEdit("KV407", "canonical-arguments")]
    messages, _ = Normalizer(edits).apply([user("a  \r\nb\u0065\u0301\n"), CALL], None)
    assert messages[0]["content"] == "a\nb\u00e9\n"
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"a": 2, "b": 1}'


TEXT = st.text("ab .:\n10", max_size=20)
MESSAGES = st.lists(
    st.one_of(
        TEXT.map(user),
        TEXT.map(lambda text: {"role": "assistant", "content": text}),
        TEXT.map(lambda text: {"role": "tool", "tool_call_id": "c1", "content": text}),
    ),
    min_size=1,
    max_size=5,
)


@given(MESSAGES, TEXT, TEXT)
def test_twice_is_once_and_no_text_is_lost(conversation: list[dict[str, Any]], time: str, name: str) -> None:
    system = {"role": "system", "content": f"Current time: {time}\nYou are an agent.\nCustomer: {name}"}
    normalizer = Normalizer([CLOCK, USER, IN_TOOL, ToolEdit("KV201", "sort-tools")])
    once = normalizer.apply([system, *conversation], TOOLS)
    assert normalizer.apply(*once) == once
    before, after = (
        Counter("".join(m["content"] + "\n" for m in messages))
        for messages in ([system, *conversation], once[0])
    )
    assert not before - after - Counter("\n")
    assert [m["role"] for m in once[0] if m["role"] != "user"] == [
        m["role"] for m in [system, *conversation] if m["role"] != "user"
    ]


def test_saved_rules_load_again(tmp_path: Path) -> None:
    edits = [CLOCK, USER, ToolEdit("KV201", "sort-tools"), TextEdit("KV407", "canonical-text")]
    Normalizer(edits).save(tmp_path / "normalizer.json")
    assert Normalizer.load(tmp_path / "normalizer.json").edits == edits


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("[]", "schema"),
        ('{"schema": "kvtool.normalizer/1"}', "edits is not a list"),
        (
            '{"schema": "kvtool.normalizer/1", "edits": [{"action": "exec"}]}',
            r"edits\[0\]: unknown action 'exec'",
        ),
        ('{"schema": "kvtool.normalizer/1", "edits": [{"action": "sort-tools"}]}', "code is missing"),
        (
            '{"schema": "kvtool.normalizer/1", "edits": [{"action": "sort-tools", "code": 1}]}',
            "code has the wrong type",
        ),
        (
            '{"schema": "kvtool.normalizer/1", "edits": [{"action": "sort-tools", "x": ""}]}',
            "unknown field 'x'",
        ),
        ("{", "not JSON"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, document: str, message: str) -> None:
    path = tmp_path / "n.json"
    path.write_text(document)
    with pytest.raises(KvtoolError, match=message):
        Normalizer.load(path)
