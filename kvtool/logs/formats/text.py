"""text: prompts as plain text under `prompt`, `text` or `input` (LMCache agent traces, completions)."""

from collections.abc import Iterator
from typing import Any

from kvtool.logs import chat
from kvtool.logs.fields import ID_KEYS, count_or_none, named, session_of, tenant_of, time_of
from kvtool.logs.format import BadRow, Format
from kvtool.requests import Request, Source

KEYS = ("prompt", "text", "input", "inputs", "query", "question")


class Text(Format):
    """The prompt is a string, or several in a list; in an envelope it may stand in a completions body."""

    name = "text"
    rank = 2

    @classmethod
    def claims(cls, row: Any) -> bool:
        """A string, or a list of them, under one of the usual names."""
        found = chat.find_body(row, KEYS)
        return found is not None and any(_prompts(found[0].get(key)) for key in KEYS)

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """One request a prompt."""
        found = chat.find_body(row, KEYS)
        if found is None:
            raise BadRow(f"none of {', '.join(KEYS)} in the row")
        body, path = found
        key = next((key for key in KEYS if _prompts(body.get(key))), None)
        if key is None:
            raise BadRow(f"{next(key for key in KEYS if key in body)} is not text")
        output, output_tokens = chat.chat_output(chat.response_of(row))
        if output_tokens is None:
            output_tokens = count_or_none(row.get("output_length", row.get("output_tokens")))
        moment = time_of(row)
        where = chat.join(path, key)
        for step, text in _prompts(body[key]):
            yield Request(
                id=named(row, ID_KEYS) or f"{source.file}:{source.row}",
                source=source,
                arrival=moment if moment is not None else time_of(body),
                session=session_of(row, body),
                tenant=tenant_of(row, body),
                model=named(body, ("model",)) or named(row, ("model",)),
                text=text,
                output=None if step else output,
                output_tokens=None if step else output_tokens,
                paths={"text": where + step} if where + step != "text" else None,
            )


def _prompts(value: Any) -> list[tuple[str, str]]:
    """(path step, prompt) of a string, which may be empty, or of a list of strings; else nothing."""
    if isinstance(value, str):
        return [("", value)]
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return [(f"[{at}]", one) for at, one in enumerate(value)]
    return []


FORMAT = Text
