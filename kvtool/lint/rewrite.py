"""Writing a normalized request back into the raw row that it came from, change by change.

Changes are found by comparing a request before and after, led through the paths to the source row, and
checked against what stands there: a row that does not hold what the request says is left as it is.
Several requests of one message list (a recorded trajectory) are edited once, as one conversation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kvtool.lint.check import share_a_list
from kvtool.lint.dialect import item_like, part_like
from kvtool.logs.reader import Row
from kvtool.prompts import paths
from kvtool.prompts.normalizer import Normalizer
from kvtool.requests import Message, Request


class Unwritable(Exception):
    """The row does not hold a field where the request says it came from."""


@dataclass(frozen=True, slots=True)
class _Change:
    """set: `new` where `old` stands. add: `new` behind the last item of a list. insert: a message
    `new` behind the one at `path`. keys: an object's keys in order. order: a list permuted as `new` says."""

    kind: Literal["set", "keys", "add", "insert", "order"]
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
    placed = [change.path for change in changes.values() if change.kind != "add"]
    if len(set(placed)) < len(placed):
        raise Unwritable("two requests of the row want different changes at one place")
    for kind in ("set", "keys", "add", "insert", "order"):
        ones = [change for change in changes.values() if change.kind == kind]
        for change in (
            sorted(ones, key=lambda one: paths.parse(one.path), reverse=True) if kind == "insert" else ones
        ):
            value = _made(value, change)
    return value


def _changes(request: Request, normalizer: Normalizer, row_shared: bool) -> Iterator[_Change]:
    if not request.messages:
        return
    messages, tools = normalizer.apply(request.messages, request.tools, row_shared=row_shared)
    for change in _message_changes(request.messages, messages):
        yield _Change(change.kind, request.source_path(change.path), change.old, change.new)
    if request.tools and tools is not None:
        order = normalizer.tool_order(request.tools)
        for index, place in enumerate(order):
            for change in _differences(request.tools[place], tools[index], f"tools[{place}]"):
                yield _Change(change.kind, request.source_path(change.path), change.old, change.new)
        if order != list(range(len(order))):
            yield _Change("order", request.source_path("tools"), None, order)


def _message_changes(old: Sequence[Message], new: Sequence[Message]) -> Iterator[_Change]:
    behind = 0
    for message in new:
        extra = len(new) - len(old)
        inserted = extra and set(message) == {"role", "content"} and message["role"] == "user"
        if inserted and (behind == len(old) or not _grew(old[behind], message)):
            yield _Change("insert", f"messages[{behind - 1}]", None, message["content"])
            continue
        yield from _differences(old[behind], message, f"messages[{behind}]")
        behind += 1


def _grew(old: Message, new: Message) -> bool:
    """Whether `new` is `old` with something said at its end."""
    if old.get("role") != new.get("role"):
        return False
    before, after = old.get("content"), new.get("content")
    if isinstance(before, str) and isinstance(after, str):
        return after.startswith(before)
    return isinstance(before, list) and isinstance(after, list) and after[: len(before)] == before


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
        return paths.changed(value, steps, lambda _: ordered)
    if change.kind == "order":
        if not isinstance(there, list) or len(there) != len(change.new):
            raise Unwritable(f"{change.path} is not the list of tools")
        return paths.changed(value, steps, lambda _: [there[place] for place in change.new])
    if change.kind == "add":
        if not isinstance(there, list):
            raise Unwritable(f"{change.path} is not a list of parts")
        part = part_like(change.new["text"], there)
        return paths.changed(value, steps, lambda _: [*there, part])
    return _inserted(value, steps, change)


def _inserted(value: Any, steps: tuple[paths.Step, ...], change: _Change) -> Any:
    """A user message, or a text block among blocks, behind the item at `steps`."""
    siblings = paths.get(value, steps[:-1]) if steps else paths.MISSING
    at = steps[-1] if steps else None
    if not isinstance(siblings, list) or not isinstance(at, int) or at >= len(siblings):
        raise Unwritable(f"{change.path} is not in a list of messages")
    new = item_like(change.new, siblings[at])
    if new is None:
        raise Unwritable(f"{change.path} is not a message with a role")
    return paths.changed(value, steps[:-1], lambda _: [*siblings[: at + 1], new, *siblings[at + 1 :]])
