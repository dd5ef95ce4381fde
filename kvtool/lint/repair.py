"""Repairs: what a request would have been without a finding. Used to price it, never written to a log."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvtool.prompts import paths
from kvtool.requests import Message, Request

Replacement = tuple[str, int, int, str]
"""(path, start, end, new text): characters [start, end) of the string at `path`."""


@dataclass(slots=True)
class Repair:
    """Changes per request index: texts, then whole message lists, then the order of tools.

    spaces: (model, tenant).
    """

    texts: dict[int, list[Replacement]] = field(default_factory=lambda: defaultdict(list))
    messages: dict[int, list[Message]] = field(default_factory=dict)
    tools: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    tool_order: dict[int, list[int]] = field(default_factory=dict)
    spaces: dict[int, tuple[str | None, str | None]] = field(default_factory=dict)

    def changes_structure(self, index: int) -> bool:
        """Whether more than characters of texts change."""
        return index in self.messages or index in self.tools or index in self.tool_order

    def rewritten(self) -> set[int]:
        """Indices of the requests whose prompt changes."""
        return {*self.texts, *self.messages, *self.tools, *self.tool_order}

    def at(self, index: int) -> "Repair":
        """What is changed in the prompt of one request."""
        part = Repair()
        for name in ("texts", "messages", "tools", "tool_order"):
            changes = getattr(self, name)
            if index in changes:
                getattr(part, name)[index] = changes[index]
        return part

    def merge(self, other: "Repair") -> None:
        """Take over another finding's changes; where both want a whole list, the first one stays."""
        for index, texts in other.texts.items():
            self.texts[index].extend(texts)
        self.messages = other.messages | self.messages
        self.tools = other.tools | self.tools
        self.tool_order = other.tool_order | self.tool_order
        self.spaces = other.spaces | self.spaces

    def apply(self, index: int, request: Request) -> Request:
        """`request`, repaired."""
        body: dict[str, Any] = {"messages": request.messages, "tools": request.tools, "text": request.text}
        if index in self.messages:
            body["messages"] = self.messages[index]
        if index in self.tools:
            body["tools"] = self.tools[index]
        elif index in self.texts:
            body = _replaced(body, self.texts[index])
        if index in self.tool_order and body["tools"] is not None:
            tools = body["tools"]
            if len(tools) == len(self.tool_order[index]):
                body["tools"] = [tools[place] for place in self.tool_order[index]]
        if index in self.spaces:
            body["model"], body["tenant"] = self.spaces[index]
        return replace(request, **body)


def _constant(text: str) -> Callable[[object], str]:
    return lambda _: text


def _replaced(body: dict[str, Any], replacements: Sequence[Replacement]) -> dict[str, Any]:
    by_path: dict[str, list[Replacement]] = defaultdict(list)
    for one in replacements:
        by_path[one[0]].append(one)
    for path, ones in by_path.items():
        steps = paths.parse(path)
        text = paths.get(body, steps)
        if not isinstance(text, str):
            continue
        for _, start, end, new in sorted(set(ones), reverse=True):
            text = text[:start] + new + text[end:]
        body = paths.changed(body, steps, _constant(text))
    return body
