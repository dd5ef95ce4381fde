"""Slots: the varying spans of an agent's instructions, each with its value in every request.

A slot begins as a gap of the alignment and is widened to the value that a person would point at: the
whole timestamp where only its minutes differ, the whole identifier where only its end does.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kvtool.prompts import paths
from kvtool.prompts.alignment import Skeleton, align, spread
from kvtool.prompts.fields import Prompt
from kvtool.prompts.values import EAST_ASIAN, listings, moments

SAMPLES = 64
"""Variants looked at when a slot is widened."""
APART = 0.1
"""Share of requests whose text may fit no skeleton before the whole field counts as exchanged."""
OPENING_STABLE = 120
"""Characters of stable text behind a slot that no two people write by chance."""
LONGEST_MOMENT = 80
"""Characters of a timestamp on either side of what varies in it."""
PROSE = 5
"""Spaces in a value from which it is sentences: their full stop is theirs, a block begins with its line."""
_INSIDE_WORD = re.compile(rf"[^\W{EAST_ASIAN}]|[\-./\\~+@:]")
"""Characters that hold an identifier, a path or a number together."""


@dataclass(frozen=True, slots=True)
class Place:
    """A slot's value in one request: characters [start, end) of the string at `path`."""

    path: str
    start: int
    end: int
    value: str


Key = tuple[str | int, ...]
"""Names a field across requests."""


@dataclass(slots=True)
class Slot:
    """One varying span of one field of an agent's instructions.

    key: names the field across requests, such as ("messages", 0, "content") or ("tools", "search",
    "function.description"). before, after: the literals beside it, up to the next slot or the field's
    ends. places: request index -> value. variants: every distinct string of the field, first one first.
    """

    agent: int
    key: Key
    role: str
    number: int
    skeleton: Skeleton
    before: str
    after: str
    places: dict[int, Place] = field(default_factory=dict)

    def values(self) -> list[str]:
        """Distinct values in order of appearance."""
        return list(dict.fromkeys(place.value for place in self.places.values()))

    def line(self) -> tuple[str, str]:
        """The stable text of the slot's own line, before and after it."""
        return self.before.rsplit("\n", 1)[-1], self.after.split("\n", 1)[0]

    def stable_after(self) -> int:
        """Stable characters of the field behind the slot."""
        return sum(map(len, self.skeleton.literals[self.number + 1 :]))

    def template(self, name: str) -> str:
        """The slot's line as people read it: `Current time: {clock-time}`."""
        before, after = self.line()
        before = "…" + before[-60:] if len(before) > 60 else before
        after = after[:20] + "…" if len(after) > 20 else after
        return f"{before.lstrip()}{{{name}}}{after.rstrip()}"


Strings = dict[Key, dict[int, tuple[str, str, str, int]]]
"""field -> request index -> (path, role, text, offset)."""


def head_strings(prompts: Sequence[Prompt], members: Sequence[int]) -> Strings:
    """The instruction fields and tool strings of one agent's requests."""
    strings: Strings = {}
    leaves: dict[str, list[tuple[str, str]]] = {}
    for index in members:
        prompt = prompts[index]
        for f in prompt.system():
            strings.setdefault(("messages", f.message, f.part), {})[index] = (
                f.path,
                f.role,
                f.text,
                f.offset,
            )
        for number, tool in enumerate(prompt.request.tools or []):
            printed = json.dumps(tool, sort_keys=True)
            if printed not in leaves:
                leaves[printed] = list(_leaves(tool, ""))
            name = tool_name(tool)
            for part, text in leaves[printed]:
                key = ("tools", name, part)
                strings.setdefault(key, {})[index] = (f"tools[{number}].{part}", "tools", text, 0)
    return strings


def opening_strings(prompts: Sequence[Prompt], members: Sequence[int]) -> Strings:
    """The first message after the instructions: agents put instructions there too. Text prompts are one."""
    strings: Strings = {}
    for index in members:
        prompt = prompts[index]
        for f in prompt.fields:
            if f.message == prompt.head and f.role == "user":
                strings.setdefault(("messages", f.message, f.part), {})[index] = (
                    f.path,
                    f.role,
                    f.text,
                    f.offset,
                )
    return strings


def opening_slots(agent: int, strings: Strings) -> list[Slot]:
    """Slots with stable text behind them; in a message that only people wrote there are none."""
    return [slot for slot in find_slots(agent, strings) if slot.stable_after() >= OPENING_STABLE]


def tool_name(tool: Mapping[str, object]) -> str:
    """The function's name, in the nested or the flat form."""
    function = tool.get("function", tool)
    return str(function.get("name", "")) if isinstance(function, Mapping) else ""


def worded(tool: object) -> str:
    """A tool's canonical JSON with its wordings (strings outside of lists) left out: its structure."""
    return json.dumps(_unworded(tool), sort_keys=True)


def _unworded(value: object) -> object:
    if isinstance(value, dict):
        return {key: _unworded(inner) for key, inner in value.items()}
    return "" if isinstance(value, str) else value


def _leaves(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, paths.child(path, key))


def find_slots(agent: int, strings: Strings) -> list[Slot]:
    """Slots of every field whose text varies, in the order of fields and of their text."""
    slots: list[Slot] = []
    for key, texts in strings.items():
        variants: dict[str, list[int]] = {}
        for index, (_, _, text, _) in texts.items():
            variants.setdefault(text, []).append(index)
        if len(variants) < 2:
            continue
        skeleton = widened(align(list(variants)), list(variants))
        apart = sum(len(indices) for text, indices in variants.items() if skeleton.gaps(text) is None)
        if apart > APART * len(texts) and len(strings) > 1:
            skeleton = Skeleton(("", ""))  # another text altogether, beside fields that stay
        if len(skeleton.literals) < 2:
            continue
        role = next(iter(texts.values()))[1]
        found = [
            Slot(agent, key, role, number, skeleton, before, after)
            for number, (before, after) in enumerate(pairwise(skeleton.literals))
        ]
        for text, indices in variants.items():
            gaps = skeleton.gaps(text)
            if gaps is None:
                continue
            for index in indices:
                path, _, _, offset = texts[index]
                for slot, (start, end) in zip(found, gaps, strict=True):
                    slot.places[index] = Place(path, offset + start, offset + end, text[start:end])
        slots += [slot for slot in found if len(slot.values()) > 1]
    return slots


def inner_slots(slot: Slot) -> list[Slot]:
    """The slots inside a text that some requests have and others lack, such as a line with a clock."""
    present = {index: place for index, place in slot.places.items() if place.value.strip()}
    values = list(dict.fromkeys(place.value for place in present.values()))
    if len(present) == len(slot.places) or len(values) < 2:
        return []
    inner = widened(align(values), values)
    if len(inner.literals) < 2:
        return []
    outer = slot.skeleton.literals
    first, *between, last = inner.literals
    own = (slot.before + first, *between, last + slot.after)
    skeleton = Skeleton((*outer[: slot.number], *own, *outer[slot.number + 2 :]))
    found = [
        Slot(slot.agent, slot.key, slot.role, slot.number + number, skeleton, before, after)
        for number, (before, after) in enumerate(pairwise(own))
    ]
    for index, place in present.items():
        for part, (start, end) in zip(found, inner.gaps(place.value) or (), strict=False):
            value = place.value[start:end]
            part.places[index] = Place(place.path, place.start + start, place.start + end, value)
    return found


def widened(skeleton: Skeleton, variants: Sequence[str]) -> Skeleton:
    """`skeleton` with each gap grown to the whole value, and gaps that meet joined."""
    fitting = [(text, gaps) for text in variants if (gaps := skeleton.gaps(text)) is not None]
    literals = list(skeleton.literals)
    grow_left, grow_right = [0] * (len(literals) - 1), [0] * (len(literals) - 1)
    for text, gaps in spread(fitting, SAMPLES):
        stamps = [*listings(text), *_moments_at(text, gaps)]
        for number, (start, end) in enumerate(gaps):
            left, right = _value_around(text, start, end, stamps)
            grow_left[number] = max(grow_left[number], start - left)
            grow_right[number] = max(grow_right[number], right - end)
    joined = [literals[0]]
    for number in range(len(grow_left)):
        before, after = joined[-1], literals[number + 1]
        left = min(grow_left[number], len(before))
        right = min(grow_right[number], len(after))
        joined[-1] = before[: len(before) - left]
        if not joined[-1] and len(joined) > 1:
            joined.pop()  # the whole literal belongs to the values on both sides
        joined.append(after[right:])
    return _trimmed(Skeleton(tuple(joined)), [text for text, _ in fitting])


def _moments_at(text: str, gaps: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The moments that stand in or beside the gaps: long texts are not searched for others."""
    windows: list[tuple[int, int]] = []
    for start, end in gaps:
        first, last = max(0, start - LONGEST_MOMENT), min(len(text), end + LONGEST_MOMENT)
        if windows and first <= windows[-1][1]:
            first = windows.pop()[0]
        windows.append((first, last))
    for first, last in windows:
        yield from ((first + left, first + right) for left, right in moments(text[first:last]))


def _value_around(text: str, start: int, end: int, stamps: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """[start, end) grown over the timestamp it is part of, else over the word it is part of."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    for first, last in stamps:
        if first < end and start < last:
            return min(first, start), max(last, end)
    left, right = start, end
    prose = text[start:end].count(" ") >= PROSE
    closing = re.compile(r"\s*</(\w+)>").match(text, end)
    opening = text.rfind("\n", 0, start) + 1
    tag = None if closing is None else re.compile(rf"\s*<{closing[1]}\b[^>]*>").match(text, opening)
    if closing is not None and tag is not None and start < tag.end():
        left = opening + len(text[opening:end]) - len(text[opening:end].lstrip())
        right = closing.end()  # the element that the value opens ends with it
    elif prose:
        stop = re.compile(r"[.!?…]*").match(text, end)
        assert stop is not None
        right = stop.end() if text[stop.end() : stop.end() + 1] in ("", "\n") else end
        if "\n" in text[start:end] and ":" not in text[opening:start]:
            left = opening
    elif dump := _dump_around(text, start, end):
        left, right = dump
    elif end > start:
        if _INSIDE_WORD.match(text[start]):
            while left and _INSIDE_WORD.match(text[left - 1]):
                left -= 1
            while left < start and text[left] in ":.-":
                left += 1
            label = text.rfind(":", left, start)
            if label >= 0 and not re.match(r"://|:[\\/]", text[label:start]):
                left = label + 1
        padding = re.compile(r"={1,2}(?![\w=])").match(text, end)
        if padding is not None and (end - left) % 4 == 4 - len(padding[0]) and end - left > 16:
            right = padding.end()  # base64
        elif _INSIDE_WORD.match(text[end - 1]):
            while right < len(text) and _INSIDE_WORD.match(text[right]):
                right += 1
            while right > end and text[right - 1] in ".:-":
                right -= 1
    return left, right


def _dump_around(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The JSON with a list of objects in it that makes up the line of [start, end): a dumped state."""
    first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    line = text[first : last if last >= 0 else len(text)]
    opening = re.search(r"[{\[]", line)
    closing = max(line.rfind("}"), line.rfind("]")) + 1
    if opening is None or "[{" not in line.replace(" ", "") or opening.start() >= closing:
        return None
    left, right = first + opening.start(), first + closing
    try:
        json.loads(text[left:right])
    except (ValueError, RecursionError):
        return None
    return (left, right) if left <= start and end <= right else None


def _trimmed(skeleton: Skeleton, variants: Sequence[str]) -> Skeleton:
    """White space that all values of a gap begin or end with goes to the literals."""
    literals = list(skeleton.literals)
    for number in range(len(literals) - 1):
        values = [
            text[gaps[number][0] : gaps[number][1]]
            for text in variants
            if (gaps := Skeleton(tuple(literals)).gaps(text)) is not None
        ]
        values = list(dict.fromkeys(values))
        if not values:
            continue
        lead = _common_space(values)
        literals[number] += lead
        tail = _common_space([value[len(lead) :][::-1] for value in values])
        literals[number + 1] = tail[::-1] + literals[number + 1]
    return Skeleton(tuple(literals))


def _common_space(values: Sequence[str]) -> str:
    shortest = min(values, key=len)
    length = 0
    while length < len(shortest) and shortest[length].isspace():
        if any(value[length] != shortest[length] for value in values):
            break
        length += 1
    return shortest[:length]
