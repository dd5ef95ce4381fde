"""Applies normalizing edits to one request's messages and tools, in microseconds, without state.

Nothing is mutated and nothing outside the slots is changed. Applying twice gives what applying once
gave: a slot that already holds its stable sentence is left alone.

Where a moved value goes: agents send the whole history at every step and do not know about the moved
text, so it is only in the newest prompt. Behind the last message it costs just itself. In the last
*user* message it would stand before the tool steps of that turn, and everything after it would miss at
every step. A value that never changes during a session goes to the first user message and is cached.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from kvtool.errors import KvtoolError
from kvtool.files import write_whole
from kvtool.prompts import paths
from kvtool.prompts.edits import Edit, SlotEdit, from_json, to_json
from kvtool.prompts.fields import head_length
from kvtool.prompts.forms import canonical_tool
from kvtool.requests import Message

Tools = list[dict[str, Any]]
SEPARATOR = "\n\n"


class Normalizer:
    """Edits, ready to apply. Safe to share between threads."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        self.edits = list(edits)
        slots = [edit for edit in self.edits if isinstance(edit, SlotEdit)]
        self._system = [edit for edit in slots if edit.where == "system"]
        self._in_tools: dict[str, list[SlotEdit]] = {}
        for edit in slots:
            if edit.where.startswith("tool "):
                self._in_tools.setdefault(edit.where[5:], []).append(edit)
        actions = {edit.action for edit in self.edits}
        self._sort = "sort-tools" in actions
        self._canonical = "canonical-tools" in actions
        self._text = "canonical-text" in actions
        self._arguments = "canonical-arguments" in actions

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """From a normalizer.json; KvtoolError names what is wrong with it."""
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise KvtoolError(f"{path}: {error.strerror or error}") from error
        except ValueError as error:
            raise KvtoolError(f"{path}: not JSON: {error}") from error
        return cls(from_json(document, str(path)))

    def save(self, path: str | Path) -> None:
        """Write normalizer.json, whole or not at all."""
        write_whole(Path(path), json.dumps(to_json(self.edits), indent=2, ensure_ascii=False) + "\n")

    def apply(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None, *, row_shared: bool = False
    ) -> tuple[list[Message], Tools | None]:
        """(messages, tools) for the model.

        row_shared: the messages stand for every request of a log row, so the end of one request's
        conversation is the middle of the next one's; values for the tail go to the first user message.
        """
        notes: list[tuple[SlotEdit, str]] = []
        edited = list(messages)
        head = head_length(edited)
        can_move = any(message.get("role") != "assistant" for message in edited[head:])
        if self._text:
            edited = [_each_text(message, _canonical_text) for message in edited]
        if self._arguments:
            edited = [_canonical_arguments(message) for message in edited]
        if self._system:
            for index in range(head):
                edited[index] = _each_text(
                    edited[index], lambda text: _take_out(text, self._system, notes, can_move)
                )
        if tools is not None:
            tools = [self._tool(tool, notes, can_move) for tool in tools]
            if self._sort:
                tools = [tools[place] for place in self.tool_order(tools)]
        for target in ("first-user", "tail"):
            text = "\n".join(
                edit.note[0] + value + edit.note[1]
                for edit, value in notes
                if ("first-user" if row_shared else edit.target) == target
            )
            if text:
                _append(edited, text, head, at_tail=target == "tail")
        return edited, tools

    def tool_order(self, tools: Sequence[dict[str, Any]]) -> list[int]:
        """Places of `tools` in the order in which `apply` puts them: by name, equal names by their text, the
        provider's own tools, which have none, last."""
        places = list(range(len(tools)))
        if not self._sort:
            return places
        names = [_tool_name(tool) for tool in tools]
        if len(set(names)) == len(names) and "" not in names:  # the usual case, and twenty times cheaper
            return sorted(places, key=names.__getitem__)

        def key(place: int) -> tuple[bool, str, str]:
            return names[place] == "", names[place], json.dumps(tools[place], sort_keys=True)

        return sorted(places, key=key)

    def _tool(
        self, tool: dict[str, Any], notes: list[tuple[SlotEdit, str]], can_move: bool
    ) -> dict[str, Any]:
        if self._in_tools:
            function = tool.get("function", tool)
            for edit in self._in_tools.get(str(function.get("name", "")), ()):
                steps = paths.parse(edit.part)
                text = paths.get(tool, steps)
                if isinstance(text, str):
                    new = _take_out(text, [edit], notes, can_move)
                    if new != text:
                        tool = paths.changed(tool, steps, _constant(new))
        return canonical_tool(tool) if self._canonical else tool


def matched(old: Sequence[Message], new: Sequence[Message]) -> list[list[Message]]:
    """What `Normalizer.apply` made of each of the `old` messages: itself, with a note inserted behind it."""
    result: list[list[Message]] = []
    for message in new:
        extra = len(new) > len(old) and set(message) == {"role", "content"} and message["role"] == "user"
        if extra and (len(result) == len(old) or not _grew(old[len(result)], message)):
            result[-1].append(message)
        else:
            result.append([message])
    return result


def _grew(old: Message, new: Message) -> bool:
    """Whether `new` is `old` with something said at its end."""
    if old.get("role") != new.get("role"):
        return False
    before, after = old.get("content"), new.get("content")
    if isinstance(before, str) and isinstance(after, str):
        return after.startswith(before)
    return isinstance(before, list) and isinstance(after, list) and after[: len(before)] == before


def _constant(text: str) -> Callable[[object], str]:
    return lambda _: text


def _tool_name(tool: dict[str, Any]) -> str:
    return str(tool.get("function", tool).get("name", ""))


def _take_out(text: str, edits: Sequence[SlotEdit], notes: list[tuple[SlotEdit, str]], can_move: bool) -> str:
    """`text` with the edits' stable sentences in it; the values go to `notes`."""
    for edit in edits:
        if not can_move and edit.target != "nowhere":
            continue
        place = _find(text, edit)
        if place is None:
            continue
        start, end = place
        value = text[start:end]
        if value == edit.leave or not value.strip():
            continue
        text = text[:start] + edit.leave + text[end:]
        if edit.target != "nowhere":
            notes.append((edit, value))
    return text


def _find(text: str, edit: SlotEdit) -> tuple[int, int] | None:
    if edit.at_start:
        start = len(edit.before) if text.startswith(edit.before) else -1
    else:
        start = text.find(edit.before)
        start = -1 if start < 0 else start + len(edit.before)
    if start < 0:
        return None
    if edit.at_end:
        end = len(text) - len(edit.after) if text.endswith(edit.after) else -1
    else:
        end = text.find(edit.after, start)
    return (start, end) if end >= start else None


def _each_text(message: Message, change: Callable[[str], str]) -> Message:
    """`message` with `change` applied to its content's text; the same object where nothing changed."""
    content = message.get("content")
    if isinstance(content, str):
        new = change(content)
        return message if new == content else {**message, "content": new}
    if isinstance(content, list):
        parts = [
            {**part, "text": change(part["text"])}
            if isinstance(part, dict) and isinstance(part.get("text"), str)
            else part
            for part in content
        ]
        return message if parts == content else {**message, "content": parts}
    return message


def _append(messages: list[Message], text: str, head: int, at_tail: bool) -> None:
    """Say `text` at the end of the first user message, or behind the last message of the conversation.

    A trailing assistant message is a prefill and stays last. A tool result is not added to: the text
    becomes a user message of its own behind it.
    """
    users = [index for index in range(head, len(messages)) if messages[index].get("role") == "user"]
    last = len(messages) - 1
    while last >= head and messages[last].get("role") == "assistant":
        last -= 1
    index = last if at_tail or not users else users[0]
    if messages[index].get("role") != "user":
        messages.insert(index + 1, {"role": "user", "content": text})
        return
    content = messages[index].get("content")
    if isinstance(content, list):
        extended: Any = [*content, {"type": "text", "text": text}]
    else:
        extended = f"{content}{SEPARATOR}{text}" if content else text
    messages[index] = {**messages[index], "content": extended}


def _canonical_text(text: str) -> str:
    spaced = "\r" in text or " \n" in text or "\t\n" in text or text.endswith((" ", "\t"))
    if not spaced and (text.isascii() or unicodedata.is_normalized("NFC", text)):
        return text  # the usual case, ten times cheaper
    return unicodedata.normalize("NFC", re.sub(r"[ \t]+(?=\n|$)", "", re.sub(r"\r\n?", "\n", text)))


@lru_cache(maxsize=4096)
def _reprinted(arguments: str) -> str:
    """JSON with sorted keys; a history brings the same calls again and again."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True, ensure_ascii=False)
    except (ValueError, RecursionError):
        return arguments


def _canonical_arguments(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    changed = []
    for call in calls:
        function = call.get("function") or {}
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            printed = _reprinted(arguments)
            differs = printed != arguments
        else:
            printed = _sorted_keys(arguments)
            differs = printed is not arguments
        if differs:
            call = {**call, "function": {**function, "arguments": printed}}
        changed.append(call)
    same = all(new is old for new, old in zip(changed, calls, strict=True))
    return message if same else {**message, "tool_calls": changed}


def _sorted_keys(value: Any) -> Any:
    """`value` with sorted keys at every depth; the same object where they are."""
    if isinstance(value, dict):
        new = {key: _sorted_keys(value[key]) for key in sorted(value, key=str)}
        same = list(new) == list(value) and all(new[key] is value[key] for key in new)
        return value if same else new
    if isinstance(value, list):
        items = [_sorted_keys(item) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value
