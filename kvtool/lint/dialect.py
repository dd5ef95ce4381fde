"""Text that is added to a log row, in the shape that its neighbours have: every API has its own."""

from collections.abc import Sequence
from typing import Any


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
