"""Where each field of a request stands in the prompt that a template made of it.

It is read off private-use marks around every string of the request; where marks changed more than
themselves, fields are searched for in order instead.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvtool.media import content_parts
from kvtool.requests import Message

Field = tuple[str, str, str]
"""Text, path and role of a string of the request."""

_OPEN, _CLOSE, _END = "\ue000", "\ue001", "\ue002"


@dataclass(frozen=True, slots=True)
class Span:
    """Characters [start, end) of a rendered prompt that came from the string at `path`.

    `offset` is where the span begins in that string, or -1 for a field that was serialised as JSON
    (a tool, a call's arguments given as an object), whose characters do not map one to one.
    """

    start: int
    end: int
    path: str
    role: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt as the model sees it. Spans are in text order and do not overlap."""

    text: str
    spans: tuple[Span, ...]


def marked(message: Message, path: str, fields: list[Field] | None, takes_parts: bool) -> Message:
    """A copy of `message` with every part as text, or all in one string where the template takes no parts.

    Text carries marks, each entered in `fields` (text, path, role); None leaves them out.
    """
    role = str(message.get("role", "user"))

    def mark(text: str, where: str) -> str:
        if fields is None:
            return text
        fields.append((text, where, role))
        return f"{_OPEN}{len(fields) - 1}{_CLOSE}{text}{_END}"

    copy = dict(message)
    if isinstance(message.get("reasoning_content"), str):
        copy["reasoning_content"] = mark(message["reasoning_content"], f"{path}.reasoning_content")
    content = message.get("content")
    if isinstance(content, str):
        copy["content"] = mark(content, f"{path}.content")
    elif isinstance(content, list):
        parts = [
            {"type": "text", "text": mark(text, f"{path}.content{suffix}")}
            for suffix, text in content_parts(content)
        ]
        copy["content"] = parts if takes_parts else "".join(part["text"] for part in parts)
    return copy


def unmark(given: str, text: str, fields: list[Field]) -> list[Span] | None:
    """Spans read off the marks, or None when the marks changed more than themselves."""
    plain: list[str] = []
    spans: list[Span] = []
    length = 0
    open_field: tuple[int, int] | None = None
    position = 0
    while position < len(given):
        stop = min(
            (at for at in (given.find(_OPEN, position), given.find(_END, position)) if at >= 0),
            default=len(given),
        )
        plain.append(given[position:stop])
        length += stop - position
        position = stop
        if position == len(given):
            break
        if given[position] == _OPEN:
            close = given.find(_CLOSE, position)
            number = given[position + 1 : close]
            if close < 0 or not number.isdigit():
                return None
            open_field = (int(number), length)
            position = close + 1
        else:
            if open_field is not None and length > open_field[1]:
                value, path, role = fields[open_field[0]]
                offset = value.find("".join(plain)[open_field[1] : length])
                if offset >= 0:
                    spans.append(Span(open_field[1], length, path, role, offset))
            open_field = None
            position += 1
    return spans if "".join(plain) == text else None


def search(text: str, fields: list[Field]) -> list[Span]:
    """Spans found by looking for each field's stripped text in order."""
    spans: list[Span] = []
    cursor = 0
    for value, path, role in fields:
        stripped = value.strip()
        at = text.find(stripped, cursor) if stripped else -1
        if at >= 0:
            spans.append(Span(at, at + len(stripped), path, role, value.find(stripped)))
            cursor = at + len(stripped)
    return spans


def search_tools(text: str, tools: Sequence[dict[str, Any]]) -> list[Span]:
    """Spans of tools, each in the form of JSON in which it stands there first."""
    spans: list[Span] = []
    cursor = 0
    for index, tool in enumerate(tools):
        inner = tool.get("function", tool)
        forms = (
            json.dumps(form, ensure_ascii=False, indent=indent)
            for form in (tool, inner)
            for indent in (None, 4, 2)
        )
        for form in forms:
            at = text.find(form, cursor)
            if at >= 0:
                spans.append(Span(at, at + len(form), f"tools[{index}]", "tools", -1))
                cursor = at + len(form)
                break
    return spans
