"""--map: a schema that no format knows, read by paths that the user names; and what to map, suggested."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvtool.errors import KvtoolError
from kvtool.logs import bodies, chat
from kvtool.logs.anthropic import anthropic_tools, looks_anthropic
from kvtool.logs.fields import count_or_none, microseconds, structured, text_or_none
from kvtool.logs.format import BadRow, Format
from kvtool.requests import Request, Source

PROMPTS = ("body", "messages", "text", "token_ids")
OTHERS = ("tools", "model", "timestamp", "session", "tenant", "id", "output", "output_tokens")
ALIASES = {"prompt": "text", "time": "timestamp", "arrival": "timestamp", "session_id": "session"}
_STEP = re.compile(r"\[(\d+)\]|\.?([^.\[\]]+)")


def mapped_format(mapping: Mapping[str, str]) -> type[Format]:
    """A format that reads `mapping` (our field -> path in a row). Raises KvtoolError for unknown fields."""
    fields = {ALIASES.get(name, name): path for name, path in mapping.items()}
    for name in fields:
        if name not in PROMPTS + OTHERS:
            raise KvtoolError(f"--map {name}: no such field", f"map {', '.join(PROMPTS + OTHERS)}")
    prompts = [name for name in PROMPTS if name in fields]
    if len(prompts) != 1:
        raise KvtoolError(
            f"--map must name one of {', '.join(PROMPTS)}", "for example --map messages=request.body.messages"
        )

    class Mapped(Format):
        """Rows of the user's own schema."""

        name = "mapped"

        @classmethod
        def claims(cls, row: Any) -> bool:
            """Whether the prompt's path is there."""
            return lookup(row, fields[prompts[0]])[0] is not None

        def read(self, row: Any, source: Source) -> Iterator[Request]:
            """One request a row."""
            yield _request(row, source, fields, prompts[0])

    return Mapped


def _request(row: Any, source: Source, fields: Mapping[str, str], prompt: str) -> Request:
    found = {name: lookup(row, path) for name, path in fields.items()}
    value, where = found[prompt]
    if value is None:
        raise BadRow(f"nothing at {fields[prompt]}")
    given: dict[str, Any] = {}
    if prompt == "body":
        if not isinstance(value, dict):
            raise BadRow(f"{fields[prompt]} is not an object")
        body = bodies.prompt_of(value, where)
        given = {"messages": body.messages, "tools": body.tools, "model": body.model, "paths": body.paths}
    elif prompt == "text":
        if not isinstance(value, str):
            raise BadRow(f"{fields[prompt]} is not text")
        given = {"text": value, "paths": {"text": where}}
    elif prompt == "token_ids":
        import numpy as np

        if not isinstance(value, list) or not all(type(one) is int and 0 <= one < 2**32 for one in value):
            raise BadRow(f"{fields[prompt]} is not a list of token ids")
        given = {"token_ids": np.array(value, np.uint32), "paths": {"token_ids": where}}
    else:
        anthropic = looks_anthropic({"messages": value})
        at, _, last = where.rpartition(".")
        if anthropic and last == "messages":
            body = bodies.prompt_of({"messages": value}, at, "/v1/messages")
            given = {"messages": body.messages, "paths": body.paths}
        else:
            paths = {"messages": where}
            given = {"messages": chat.chat_messages(value, fields[prompt], paths), "paths": paths}
    tools, tools_at = found.get("tools", (None, ""))
    if tools:
        given["tools"] = anthropic_tools(tools, tools_at, given["paths"])
    return Request(
        id=text_or_none(found.get("id", (None,))[0]) or f"{source.file}:{source.row}",
        source=source,
        arrival=microseconds(found.get("timestamp", (None,))[0]),
        session=text_or_none(found.get("session", (None,))[0]),
        tenant=text_or_none(found.get("tenant", (None,))[0]),
        model=text_or_none(found.get("model", (None,))[0]) or given.pop("model", None),
        output=bodies.answer_of(found.get("output", (None,))[0])[0],
        output_tokens=count_or_none(found.get("output_tokens", (None,))[0]),
        **{name: one for name, one in given.items() if name != "model"},
    )


def lookup(row: Any, path: str) -> tuple[Any, str]:
    """(value at `path`, the path with `:json` where a string had to be decoded); None where nothing is."""
    value, where = row, ""
    for match in _STEP.finditer(path):
        value, step = structured(value)
        where += step
        if match[1] is not None:
            index = int(match[1])
            value = value[index] if isinstance(value, list) and index < len(value) else None
            where += f"[{index}]"
        else:
            value = value.get(match[2]) if isinstance(value, dict) else None
            where += ("." if where else "") + match[2]
    decoded, step = structured(value)
    return (decoded, where + step) if isinstance(decoded, list | dict) else (value, where)


def explain(rows: Sequence[Any]) -> str:
    """Which columns the rows have, and what to map: for the error when no format claims a file."""
    columns: dict[str, Any] = {}
    for row in rows:
        _columns(row, "", columns, 2)
    if not columns:
        return "the rows are not objects"
    hint = f"columns found: {', '.join(list(columns)[:20])}"
    suggestion = _suggestion(columns)
    return f"{hint}; try --map {suggestion}" if suggestion else f"{hint}; name the prompt's with --map"


def _columns(row: Any, path: str, columns: dict[str, Any], depth: int) -> None:
    value, _ = structured(row)
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        where = f"{path}.{key}" if path else str(key)
        if columns.get(where) is None:
            columns[where] = item
        if depth and isinstance(item, dict | str):
            _columns(item, where, columns, depth - 1)


def _suggestion(columns: Mapping[str, Any]) -> str | None:
    for path, item in columns.items():
        value, _ = structured(item)
        if isinstance(value, list) and value and isinstance(value[0], dict) and "role" in value[0]:
            return f"messages={path}"
    for path, item in columns.items():
        value, _ = structured(item)
        if isinstance(value, list) and len(value) > 1 and all(type(one) is int for one in value):
            return f"token_ids={path}"
    texts = {path: item for path, item in columns.items() if isinstance(item, str) and " " in item}
    longest = max(texts, key=lambda path: len(texts[path]), default=None)
    return f"text={longest}" if longest else None
