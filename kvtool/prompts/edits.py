"""Normalizing edits as data: what to change in a prompt, where it is found, and where its value goes.

`normalizer.json` is a list of these. Nothing in it is code; a value is found by the text beside it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from kvtool.errors import KvtoolError

SCHEMA = "kvtool.normalizer/1"
TAIL_SENTENCE = "(see the end of the conversation)"
FIRST_SENTENCE = "(see the first user message)"

Target = Literal["tail", "first-user", "nowhere"]


@dataclass(frozen=True, slots=True)
class SlotEdit:
    """Take a slot's value out of an instruction text or a tool and say it elsewhere.

    where: "system", or "tool NAME" with `part` the path of the string inside the tool. The value stands
    between `before` and `after`; at_start / at_end: they begin / end the text. `leave` takes its place.
    target: "tail" appends note[0] + value + note[1] behind the last message, "first-user" to the first
    user message (for values that stay the same throughout a session), "nowhere" drops it (unsafe).
    """

    code: str
    where: str
    part: str
    before: str
    after: str
    at_start: bool
    at_end: bool
    leave: str
    target: Target
    note: tuple[str, str]
    safe: bool
    action: Literal["slot"] = "slot"


@dataclass(frozen=True, slots=True)
class ToolEdit:
    """sort: tools by name. canonical: keys and unordered lists of each tool sorted, `type` first, for one
    print of each."""

    code: str
    action: Literal["sort-tools", "canonical-tools"]
    safe: bool = True


@dataclass(frozen=True, slots=True)
class TextEdit:
    """canonical-text: CRLF to LF, no space at line ends, Unicode NFC; canonical-arguments: JSON reprinted."""

    code: str
    action: Literal["canonical-text", "canonical-arguments"]
    safe: bool = True


Edit = SlotEdit | ToolEdit | TextEdit


def to_json(edits: list[Edit]) -> dict[str, Any]:
    """The document that `from_json` reads."""
    return {"schema": SCHEMA, "edits": [asdict(edit) for edit in edits]}


def from_json(document: Any, source: str) -> list[Edit]:
    """Edits of a normalizer document; anything unknown in it is the user's error, named with its place."""
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        raise KvtoolError(f"{source}: not a normalizer: its schema is not {SCHEMA}")
    entries = document.get("edits")
    if not isinstance(entries, list):
        raise KvtoolError(f"{source}: edits is not a list")
    return [_edit(entry, f"{source}: edits[{index}]") for index, entry in enumerate(entries)]


def _edit(entry: Any, where: str) -> Edit:
    if not isinstance(entry, Mapping):
        raise KvtoolError(f"{where} is not an object")
    action = entry.get("action")
    kinds: dict[Any, type[Edit]] = {
        "slot": SlotEdit,
        "sort-tools": ToolEdit,
        "canonical-tools": ToolEdit,
        "canonical-text": TextEdit,
        "canonical-arguments": TextEdit,
    }
    if action not in kinds:
        raise KvtoolError(f"{where}: unknown action {action!r}", f"choose from {', '.join(sorted(kinds))}")
    kind = kinds[action]
    values = dict(entry)
    if kind is SlotEdit:
        values["note"] = _note(entry.get("note"), where)
        if entry.get("target") not in ("tail", "first-user", "nowhere"):
            raise KvtoolError(f"{where}: unknown target {entry.get('target')!r}")
    wanted = {name: field.type for name, field in kind.__dataclass_fields__.items()}
    for name, value in values.items():
        if name not in wanted:
            raise KvtoolError(f"{where}: unknown field {name!r}")
        if name != "note" and not isinstance(value, bool if wanted[name] is bool else str):
            raise KvtoolError(f"{where}: {name} has the wrong type")
    missing = [name for name in wanted if name not in values and name not in ("action", "safe")]
    if missing:
        raise KvtoolError(f"{where}: {missing[0]} is missing")
    return kind(**values)


def _note(note: Any, where: str) -> tuple[str, str]:
    if (
        not isinstance(note, list | tuple)
        or len(note) != 2
        or not all(isinstance(part, str) for part in note)
    ):
        raise KvtoolError(f"{where}: note is not two strings")
    return note[0], note[1]
