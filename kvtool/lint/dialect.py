"""Text that is added to a log row, in the shape that its neighbours have: every API has its own."""

import re
from collections.abc import Sequence
from typing import Any

_FLAT = re.compile(r"((?:llm\.input_messages|gen_ai\.prompt)\.)(\d+)(\.(?:message\.)?)role")


def part_like(text: str, siblings: Sequence[Any]) -> Any:
    """`text` as a part of the list that `siblings` are."""
    for part in siblings:
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if kind is None:  # Gemini names a part by its only key
            return {"text": text}
        if isinstance(kind, str) and kind.startswith("input_"):  # Responses
            return {"type": "input_text", "text": text}
        if kind == "text" and isinstance(part.get("content"), str):  # OpenTelemetry
            return {"type": "text", "content": text}
    return {"type": "text", "text": text}


def attributes_like(text: str, role: Any, siblings: Sequence[Any]) -> list[Any] | None:
    """`text` said by the user as OTLP attributes behind the last message, whose role is the attribute `role`;
    None where that is no such attribute, or its message not the last one."""
    key = role.get("key") if isinstance(role, dict) else None
    named = _FLAT.fullmatch(key) if isinstance(key, str) else None
    if named is None:
        return None
    head, number, tail = named[1], int(named[2]) + 1, named[3]
    if any(str(one.get("key")).startswith(f"{head}{number}.") for one in siblings if isinstance(one, dict)):
        return None
    values = {"role": "user", "content": text}
    return [
        {"key": f"{head}{number}{tail}{name}", "value": {"stringValue": value}}
        for name, value in values.items()
    ]


def item_like(text: str, neighbour: Any) -> Any | None:
    """`text` said by the user behind `neighbour`, a message or a block; None where it is neither."""
    if not isinstance(neighbour, dict):
        return None
    if "role" in neighbour:
        if isinstance(neighbour.get("parts"), list):
            return {"role": "user", "parts": [part_like(text, [{"type": "text", "content": ""}])]}
        return {"role": "user", "content": text}
    if "functionResponse" in neighbour or "function_response" in neighbour:
        return {"text": text}
    if neighbour.get("type") == "tool_result":
        return {"type": "text", "text": text}
    return {"role": "user", "content": text} if "type" in neighbour else None
