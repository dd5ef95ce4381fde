"""Plain text, Markdown, strings of YAML or JSON: `{slot}`, `{{slot}}`, `${slot}`, `<<slot>>`, `%(slot)s`.

`/users/{id}` is an address and no slot; `$DATE` is one where its name says that it varies, for `$PATH` and
`$40` stand in many a prompt as they are.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvtool.lint.static.pieces import Piece, Prompt, line_of
from kvtool.prompts import paths

_SLOT = re.compile(
    r"\{\{\s*([^{}\n]{1,80}?)\s*\}\}|\$\{([A-Za-z_][\w.]{0,60})\}|(?<![{$\\/])\{([A-Za-z_][\w.]{0,60}(?:\(\))?)\}(?![}/])"
    r"|<<\s*([A-Za-z_]\w{0,60})\s*>>|%\(([A-Za-z_]\w{0,60})\)s|\[\[\s*([A-Za-z_]\w{0,60})\s*\]\]"
    r"|(?<![\w$\\])\$((?i:(?:[a-z]+_)*(?:date|time|datetime|timestamp|now|today|weekday|uuid|nonce"
    r"|(?:session|request|trace)_id)(?:_(?:utc|iso|str|string))?))\b"
)


def split(text: str, source: str, offset: int) -> tuple[Piece, ...]:
    """Pieces of `text`, which stands at `offset` of `source` (-1: it was decoded; lines are unknown)."""
    pieces: list[Piece] = []
    position = 0

    def add(start: int, end: int, expression: str | None) -> None:
        at = max(offset, 0)
        line = line_of(source, at + start) if offset >= 0 else 1
        pieces.append(Piece(text[start:end], expression, line, at + start, at + end))

    for match in _SLOT.finditer(text):
        if match.start() > position:
            add(position, match.start(), None)
        add(match.start(), match.end(), next(group for group in match.groups() if group is not None))
        position = match.end()
    if position < len(text):
        add(position, len(text), None)
    return tuple(pieces)


def has_slots(text: str) -> bool:
    """Whether something is to be filled in."""
    return _SLOT.search(text) is not None


def read_text(source: str) -> list[Prompt]:
    """The whole file is one template."""
    return [Prompt("", None, split(source, source, 0))]


def read_structured(source: str, data: Any) -> list[Prompt]:
    """Every string with slots in decoded YAML or JSON is a template of its own."""
    prompts = []
    for path, text, role in _strings(data, "", None):
        offset = _offset(source, text)
        pieces = split(text, source, offset)
        if any(piece.expression is not None for piece in pieces):
            prompts.append(Prompt(path, role, _lines(pieces, source, offset, text)))
    return prompts


def _strings(value: Any, path: str, role: str | None) -> Iterator[tuple[str, str, str | None]]:
    if isinstance(value, str):
        yield path, value, role
    elif isinstance(value, dict):
        own = value.get("role") if isinstance(value.get("role"), str) else None
        for key, inner in value.items():
            said = own or (key if key in ("system", "user", "assistant", "developer") else role)
            yield from _strings(inner, paths.child(path, str(key)), said)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _strings(inner, f"{path}[{index}]", role)


def _offset(source: str, text: str) -> int:
    """Where `text` stands in the file as it is, -1 where it is escaped or indented there."""
    return source.find(text) if source.count(text) == 1 else -1


def _lines(pieces: tuple[Piece, ...], source: str, offset: int, text: str) -> tuple[Piece, ...]:
    """Positions in the string; of a decoded one the line on which the slot's own text first stands."""
    if offset >= 0:
        return tuple(replace(one, start=one.start - offset, end=one.end - offset) for one in pieces)
    placed = []
    for piece in pieces:
        at = source.find(piece.text if piece.expression else json.dumps(piece.text)[1:-1].split("\\n")[0])
        placed.append(
            Piece(piece.text, piece.expression, line_of(source, at) if at >= 0 else 1, piece.start, piece.end)
        )
    return tuple(placed)
