"""Writing a normalized request back into the raw row that it came from, change by change.

Changes are found by comparing a request before and after, led through the paths to the source row, and
checked against what stands there: a row that does not hold what the request says is left as it is.
Several requests of one message list (a recorded trajectory) are edited once, as one conversation.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kvtool.lint.check import editable, share_a_list
from kvtool.lint.dialect import attributes_like, item_like, part_like
from kvtool.logs.reader import Row
from kvtool.prompts import paths
from kvtool.prompts.normalizer import Normalizer, matched
from kvtool.requests import Message, Request


class Unwritable(Exception):
    """The row does not hold a field where the request says it came from."""


@dataclass(frozen=True, slots=True)
class _Change:
    """set: `new` where `old` stands. add: `new` behind the last item of a list. insert: a message
    `new` behind the one at `path`. keys: an object's keys in order. deal: at the place `path`, what stands
    at the place `new`."""

    kind: Literal["set", "keys", "add", "insert", "deal"]
    path: str
    old: Any
    new: Any

    def key(self) -> str:
        """Equal for equal changes."""
        return repr((self.kind, self.path, self.old, self.new))


def rewritten(row: Row, normalizer: Normalizer) -> Any:
    """The row's value with all its requests normalized; the same object where nothing changes.

    Raises Unwritable and changes nothing where a change cannot be led back.
    """
    shared = share_a_list(row.requests)
    changes: dict[str, _Change] = {}
    for request, row_shared in zip(row.requests, shared, strict=True):
        for change in _changes(request, normalizer, row_shared):
            changes.setdefault(change.key(), change)
    value = row.value
    placed = [(change.kind, change.path) for change in changes.values() if change.kind != "add"]
    if len(set(placed)) < len(placed):
        raise Unwritable("two requests of the row want different changes at one place")
    for kind in ("set", "keys", "add", "insert"):
        ones = [change for change in changes.values() if change.kind == kind]
        for change in (
            sorted(ones, key=lambda one: paths.parse(one.path), reverse=True) if kind == "insert" else ones
        ):
            value = _made(value, change)
    return _dealt(value, [change for change in changes.values() if change.kind == "deal"])


def _changes(request: Request, normalizer: Normalizer, row_shared: bool) -> Iterator[_Change]:
    if request.messages is None or not editable(request):
        return
    messages, tools = normalizer.apply(request.messages, request.tools, row_shared=row_shared)
    for change in _message_changes(request.messages, messages):
        if request.holds(change.path):  # a message of an earlier row is edited there
            yield _led_back(change, request)
    if request.tools and tools is not None:
        order = normalizer.tool_order(request.tools)
        for index, place in enumerate(order):
            for change in _differences(request.tools[place], tools[index], f"tools[{place}]"):
                yield _led_back(change, request)
            if index != place:
                yield _Change("deal", _tool_place(request, index), None, _tool_place(request, place))


def _led_back(change: _Change, request: Request) -> _Change:
    """The change as the source row has it: another place, other names of keys."""
    new = change.new
    if change.kind == "keys":
        new = [paths.parse(request.source_path(paths.child(change.path, key)))[-1] for key in new]
    return _Change(change.kind, request.source_path(change.path), change.old, new)


def _tool_place(request: Request, index: int) -> str:
    """Where the source row has a tool: some have only what is the function in the chat API."""
    function = f"tools[{index}].function"
    return request.source_path(function if function in (request.paths or {}) else f"tools[{index}]")


def _message_changes(old: Sequence[Message], new: Sequence[Message]) -> Iterator[_Change]:
    for index, (before, now) in enumerate(zip(old, matched(old, new), strict=True)):
        yield from _differences(before, now[0], f"messages[{index}]")
        for note in now[1:]:
            yield _Change("insert", f"messages[{index}]", None, note["content"])


def _differences(old: Any, new: Any, path: str) -> Iterator[_Change]:
    if old is new:
        return
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key in old:
            yield from _differences(old[key], new[key], paths.child(path, key))
        if list(old) != list(new):
            yield _Change("keys", path, None, list(new))
    elif isinstance(old, list) and isinstance(new, list) and len(new) >= len(old):
        for index, (before, after) in enumerate(zip(old, new, strict=False)):
            yield from _differences(before, after, f"{path}[{index}]")
        for item in new[len(old) :]:
            yield _Change("add", path, None, item)
    elif old != new:
        yield _Change("set", path, old, new)


def _made(value: Any, change: _Change) -> Any:
    steps = paths.parse(change.path)
    there = paths.get(value, steps)
    if change.kind == "set":
        if there != change.old:
            raise Unwritable(f"{change.path} does not hold the text of the prompt")
        return paths.changed(value, steps, lambda _: change.new)
    if change.kind == "keys":
        if not isinstance(there, dict):
            raise Unwritable(f"{change.path} is not an object")
        place = {key: at for at, key in enumerate(change.new)}
        ordered = dict(sorted(there.items(), key=lambda item: place.get(item[0], len(place))))
        if list(ordered) == list(there):
            return value
        return paths.changed(value, steps, lambda _: ordered)
    if change.kind == "add":
        if not isinstance(there, list):
            raise Unwritable(f"{change.path} is not a list of parts")
        part = part_like(change.new["text"], there)
        return paths.changed(value, steps, lambda _: [*there, part])
    return _inserted(value, steps, change)


def _dealt(value: Any, changes: Sequence[_Change]) -> Any:
    """Tools in each other's places."""
    found = {change.path: paths.get(value, paths.parse(change.new)) for change in changes}
    for path, tool in found.items():
        if not isinstance(tool, dict):
            raise Unwritable(f"{path} is not a tool")
        value = paths.changed(value, paths.parse(path), _constant(tool))
    return value


def _constant(new: Any) -> Callable[[Any], Any]:
    return lambda _: new


def _inserted(value: Any, steps: tuple[paths.Step, ...], change: _Change) -> Any:
    """A user message, or a text block among blocks, behind the item at `steps`."""
    siblings = paths.get(value, steps[:-1]) if steps else paths.MISSING
    at = steps[-1] if steps else None
    if not isinstance(siblings, list) or not isinstance(at, int) or at >= len(siblings):
        raise Unwritable(f"{change.path} is not in a list of messages")
    flat = attributes_like(change.new, siblings[at], siblings)
    if flat is not None:
        return paths.changed(value, steps[:-1], lambda _: [*siblings, *flat])
    new = item_like(change.new, siblings[at])
    if new is None:
        raise Unwritable(f"{change.path} is not a message with a role")
    return paths.changed(value, steps[:-1], lambda _: [*siblings[: at + 1], new, *siblings[at + 1 :]])
