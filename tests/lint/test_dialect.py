"""What is added to a row has the shape of its API, and reads back as the prompt that was promised."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvtool.lint.rewrite import rewritten
from kvtool.logs.reader import open_log
from kvtool.prompts import Normalizer
from kvtool.prompts.edits import TAIL_SENTENCE, SlotEdit, ToolEdit
from kvtool.templates import ChatMLTools

CLOCK = SlotEdit(
    "KV101", "system", "", "Time: ", "\nHelp", True, False, TAIL_SENTENCE, "tail", ("Time: ", ""), True
)
NORMALIZER = Normalizer([CLOCK, ToolEdit("KV201", "sort-tools")])
SYSTEM = "Time: 10:15\nHelp people."
FUNCTIONS = [{"name": name, "description": name, "parameters": {"type": "object"}} for name in ("b", "a")]


def gemini(parts: list[Any], many: bool = False) -> dict[str, Any]:
    tools = [{"functionDeclarations": [one]} for one in FUNCTIONS]
    return {
        "systemInstruction": {"parts": [{"text": SYSTEM}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Hi"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "a", "args": {}}}]},
            {"role": "user", "parts": parts},
        ],
        "tools": tools if many else [{"functionDeclarations": FUNCTIONS}],
    }


def responses(*items: Any) -> dict[str, Any]:
    first = {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
    call = {"type": "function_call", "call_id": "c", "name": "a", "arguments": "{}"}
    tools = [{"type": "function", **one} for one in FUNCTIONS]
    return {"model": "m", "instructions": SYSTEM, "input": [first, call, *items], "tools": tools}


def otel(*messages: Any) -> dict[str, Any]:
    values = {
        "gen_ai.operation.name": "chat",
        "gen_ai.system_instructions": [{"type": "text", "content": SYSTEM}],
        "gen_ai.input.messages": [
            {"role": "user", "parts": [{"type": "text", "content": "Hi"}]},
            {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "a", "arguments": {}}]},
            *messages,
        ],
        "gen_ai.tool.definitions": [{"type": "function", **one} for one in FUNCTIONS],
    }
    attributes = [
        {"key": key, "value": {"stringValue": value if isinstance(value, str) else json.dumps(value)}}
        for key, value in values.items()
    ]
    span = {"traceId": "t", "spanId": "s", "startTimeUnixNano": "1", "attributes": attributes}
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}


def gemini_tail(row: Any) -> Any:
    return row["contents"][-1]["parts"]


def responses_tail(row: Any) -> Any:
    return row["input"][2:]


def otel_tail(row: Any) -> Any:
    span = row["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    return json.loads(span["attributes"][2]["value"]["stringValue"])[2:]


RESULT = {"functionResponse": {"name": "a", "response": {"ok": True}}}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "ok"}
ASKED = {"role": "user", "content": [{"type": "input_text", "text": "Go"}]}
TOLD = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "ok"}]}
SEEN = [{"type": "text", "content": "Go"}, {"type": "uri", "uri": "http://x/y.png", "modality": "image"}]
WORD = "Time: 10:15"


@pytest.mark.parametrize(
    ("row", "tail", "expected"),
    [
        (gemini([RESULT]), gemini_tail, [RESULT, {"text": WORD}]),
        (gemini([{"text": "Go"}]), gemini_tail, [{"text": "Go"}, {"text": WORD}]),
        (gemini([RESULT], many=True), gemini_tail, [RESULT, {"text": WORD}]),
        (responses(OUTPUT), responses_tail, [OUTPUT, {"role": "user", "content": WORD}]),
        (
            responses(ASKED),
            responses_tail,
            [{"role": "user", "content": [*ASKED["content"], {"type": "input_text", "text": WORD}]}],
        ),
        (
            otel(TOLD),
            otel_tail,
            [TOLD, {"role": "user", "parts": [{"type": "text", "content": WORD}]}],
        ),
        (
            otel({"role": "user", "parts": SEEN}),
            otel_tail,
            [{"role": "user", "parts": [*SEEN, {"type": "text", "content": WORD}]}],
        ),
    ],
)
def test_what_is_added_has_the_shape_of_its_api(
    row: Any, tail: Callable[[Any], Any], expected: Any, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (read,) = open_log([str(path)]).rows()
    new = rewritten(read, NORMALIZER)
    assert tail(new) == expected
    (request,) = read.requests
    path.write_text(json.dumps(new) + "\n")
    (again,) = open_log([str(path)])
    assert request.messages is not None
    promised = NORMALIZER.apply(request.messages, request.tools)
    assert again.messages is not None
    assert ChatMLTools().render(again.messages, again.tools).text == ChatMLTools().render(*promised).text
    assert [tool["function"]["name"] for tool in again.tools or []] == ["a", "b"]


def test_calls_of_one_row_with_lists_of_their_own_are_edited_each(tmp_path: Path) -> None:
    one, other = otel(TOLD), otel(TOLD)
    spans = one["resourceSpans"][0]["scopeSpans"][0]["spans"]
    spans.append({**other["resourceSpans"][0]["scopeSpans"][0]["spans"][0], "spanId": "u"})
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(one) + "\n")
    (read,) = open_log([str(path)]).rows()
    path.write_text(json.dumps(rewritten(read, NORMALIZER)) + "\n")
    for request in open_log([str(path)]):
        assert request.messages is not None
        assert [message["content"] for message in request.messages[-2:]] == ["ok", WORD]
