"""Tool calls in an answer: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` in OpenAI's form."""

import json
from dataclasses import dataclass

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is a JSON object as text, as OpenAI's API has it."""

    name: str
    arguments: str


def parse_tool_calls(text: str) -> tuple[str, list[ToolCall]]:
    """(content, calls) of an answer that may hold calls.

    A section that is not a call, or a call without its end, stays content: nothing the model said is lost.
    """
    content: list[str] = []
    calls: list[ToolCall] = []
    rest = text
    while OPEN in rest:
        before, _, after = rest.partition(OPEN)
        body, close, rest_after = after.partition(CLOSE)
        call = _parse(body)
        if call is None:
            content.append(before + OPEN + body + close)
        else:
            content.append(before)
            calls.append(call)
        rest = rest_after
    content.append(rest)
    joined = "".join(content)
    return (joined.strip() if calls else joined), calls


def _parse(body: str) -> ToolCall | None:
    """None for what is no call, or what could not be sent on: no JSON, no text, too deep."""
    try:
        value = json.loads(body, parse_constant=_no_constant)
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        (value["name"] + text).encode()
    except (ValueError, RecursionError):
        return None
    return ToolCall(value["name"], text)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
