"""Which text of a prompt others send too, and which is one conversation's own: only that is masked.

Instructions and tools are shown but for their slots; what people, models and tools said is masked whole,
unless it is the stable part of a first message that an agent wrote. Masks keep lengths, so places hold.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvtool.lint.corpus import Corpus
from kvtool.lint.redact import shape
from kvtool.prompts import paths
from kvtool.prompts.fields import split_path
from kvtool.prompts.slots import Key, Slot, tool_name, worded
from kvtool.requests import Request

Span = tuple[int, int]
KEPT = ("role", "type")
"""Fields of a message that are words of the format."""


class Private:
    """The private spans of a corpus' prompts; none with `show_values`."""

    def __init__(self, corpus: Corpus, show_values: bool) -> None:
        self.corpus = corpus
        self.show_values = show_values
        self._slots: dict[int, list[Slot]] = defaultdict(list)
        for slot in [*corpus.slots, *corpus.openings]:
            self._slots[slot.agent].append(slot)
        self._variants: dict[tuple[int, Key], int] = {}
        self._structures: dict[tuple[int, str], int] = {}

    def slots(self, index: int, path: str) -> list[Span]:
        """[start, end) of everything that varies in the string at `path`, as far as it is aligned."""
        own = self._slots[self.corpus.agent[index]]
        places = [slot.places[index] for slot in own if index in slot.places]
        return sorted({(place.start, place.end) for place in places if place.path == path and place.value})

    def masked(self, index: int, path: str, text: str) -> str:
        """`text`, the string at `path` of request `index`, with what is private masked."""
        if self.show_values:
            return text
        if not self._aligned(index, path):
            return shape(text)
        for start, end in self.slots(index, path):
            text = text[:start] + shape(text[start:end]) + text[end:]
        return text

    def request(self, index: int) -> Request:
        """Request `index`, masked; the normalizer finds its anchors in it as in the real one."""
        request = self.corpus.requests[index]
        if self.show_values:
            return request
        messages = request.messages and [
            self._value(index, f"messages[{number}]", message)
            for number, message in enumerate(request.messages)
        ]
        tools = request.tools and [
            self._tool(index, number, tool) for number, tool in enumerate(request.tools)
        ]
        text = None if request.text is None else self.masked(index, "text", request.text)
        return replace(request, messages=messages, tools=tools, text=text)

    def _aligned(self, index: int, path: str) -> bool:
        """Whether what stands at `path` is instructions, all of whose variants are known by their slots."""
        prompt, agent = self.corpus.prompts[index], self.corpus.agent[index]
        if path.startswith("tools"):
            return True
        message, part = split_path(path)
        key: Key = ("messages", message, part)
        own = [slot for slot in self._slots[agent] if slot.key == key]
        if own:
            return any(index in slot.places for slot in own)
        return message < prompt.head and self._count(agent, key) == 1

    def _count(self, agent: int, key: Key) -> int:
        """Distinct texts of a field among an agent's requests."""
        if (agent, key) not in self._variants:
            texts = {
                field.text
                for member in self.corpus.members[agent]
                for field in self.corpus.prompts[member].system()
                if (field.message, field.part) == key[1:]
            }
            self._variants[agent, key] = len(texts)
        return self._variants[agent, key]

    def _value(self, index: int, path: str, value: Any, kept: bool = False) -> Any:
        """A message or a part of it. Function names are the format's words too."""
        if isinstance(value, str):
            return value if kept else self.masked(index, path, value)
        if isinstance(value, list):
            return [self._value(index, paths.child(path, at), one) for at, one in enumerate(value)]
        if isinstance(value, dict):
            words = (*KEPT, "name") if path.endswith("function") else KEPT
            return {
                key: self._value(index, paths.child(path, key), one, key in words)
                for key, one in value.items()
            }
        return value

    def _tool(self, index: int, number: int, tool: dict[str, Any]) -> dict[str, Any]:
        agent, name = self.corpus.agent[index], tool_name(tool)
        if (agent, name) not in self._structures:
            forms = {
                worded(other)
                for member in self.corpus.members[agent]
                for other in self.corpus.requests[member].tools or ()
                if tool_name(other) == name
            }
            self._structures[agent, name] = len(forms)
        own_lists = self._structures[agent, name] > 1
        masked: dict[str, Any] = self._leaves(index, f"tools[{number}]", tool, own_lists)
        return masked

    def _leaves(self, index: int, path: str, value: Any, own_lists: bool, listed: bool = False) -> Any:
        if isinstance(value, str):
            if listed:
                return shape(value) if own_lists else value
            return self.masked(index, path, value)
        if isinstance(value, dict):
            return {
                key: self._leaves(index, paths.child(path, key), one, own_lists, listed)
                for key, one in value.items()
            }
        if isinstance(value, list):
            return [self._leaves(index, path, one, own_lists, True) for one in value]
        return value


def cut(text: str, spans: Sequence[Span]) -> list[tuple[str, bool]]:
    """`text` in order as (run, whether it lies in one of the ascending `spans`)."""
    runs = []
    position = 0
    for start, end in spans:
        start = max(start, position)
        if end <= start:
            continue
        runs += [(text[position:start], False), (text[start:end], True)]
        position = end
    return [(run, inside) for run, inside in [*runs, (text[position:], False)] if run]
