"""Text containers: JSON Lines, one JSON array, JSON objects one after another -> numbered rows."""

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from kvtool.logs.sources import DAMAGED

CHUNK = 1 << 20
"""Bytes read at a time from a JSON array; one element may be longer."""

LARGEST_ELEMENT = 1 << 30
"""Characters in one element of an array, beyond which it is taken for damaged."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A row that could not be decoded. `raw` is its text where known, so that it can be written back."""

    reason: str
    raw: bytes | None = None


Numbered = tuple[int, Any]
"""(1-based row number, decoded value or Unreadable)."""


def decode(text: str) -> Any:
    """One JSON value. Lone surrogates, which no tokenizer takes, become U+FFFD.

    Raises ValueError for anything else than one value.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if "\\ud" in text or "\\uD" in text:
        value = _without_surrogates(value)
    return value


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


def lines(stream: IO[bytes]) -> Iterator[Numbered]:
    """Rows of JSON Lines; a row's number is its line's, blank lines are not rows."""
    number = 0
    while True:
        try:
            line = stream.readline()
        except DAMAGED:
            yield number + 1, Unreadable("the compressed data is damaged or ends early")
            return
        if not line:
            return
        number += 1
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.isspace():
            continue
        try:
            yield number, decode(line.decode())
        except UnicodeDecodeError:
            yield number, Unreadable("not UTF-8", line)
        except ValueError:
            yield number, Unreadable("not JSON", line)


class _Text:
    """A window on decoded text that grows on demand and drops what is behind."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self.buffer = ""
        self.at = 0
        self.ended = False
        self.damaged = False

    def more(self, size: int = CHUNK) -> bool:
        """Read on; False when there is nothing more."""
        if self.ended:
            return False
        try:
            data = self._stream.read(size)
        except DAMAGED:
            data, self.damaged = b"", True
        self.ended = not data
        self.buffer = self.buffer[self.at :] + self._decoder.decode(data, final=self.ended)
        self.at = 0
        return True

    def skip(self, characters: str) -> str:
        """Pass over `characters`; the next one, or "" at the end."""
        while True:
            while self.at < len(self.buffer) and self.buffer[self.at] in characters:
                self.at += 1
            if self.at < len(self.buffer):
                return self.buffer[self.at]
            if not self.more():
                return ""


WHITE = " \t\r\n"
_TOKEN = re.compile(r'["\\{}\[\],]')


def values(stream: IO[bytes], array: bool) -> Iterator[Numbered]:
    """Elements of a JSON array, or JSON values one after another (a pretty-printed object is one row).

    A broken element is passed over by its brackets; where that fails the rest counts as one bad row.
    """
    text = _Text(stream)
    number = 0
    if array:
        text.skip(WHITE)
        text.at += 1
    decoder = json.JSONDecoder()
    while True:
        nextone = text.skip(WHITE + ("," if array else ""))
        if nextone == "" or (array and nextone == "]"):
            if text.damaged or (array and nextone == ""):
                yield number + 1, Unreadable("the file ends early")
            elif nextone == "]":
                text.at += 1
                if text.skip(WHITE):
                    yield number + 1, Unreadable("text after the array's end")
            return
        number += 1
        step = CHUNK
        while True:
            value: Any
            try:
                value, end = decoder.raw_decode(text.buffer, text.at)
                if end == len(text.buffer) and not text.ended and not isinstance(value, dict | list):
                    raise ValueError("a number may go on")
                if "\\ud" in text.buffer[text.at : end] or "\\uD" in text.buffer[text.at : end]:
                    value = _without_surrogates(value)
            except (ValueError, RecursionError):
                end = _element_end(text.buffer, text.at)
                if end < 0 and len(text.buffer) - text.at < LARGEST_ELEMENT and text.more(step):
                    step *= 2
                    continue
                if end < 0:
                    yield number, Unreadable("the file ends early" if text.ended else "not JSON")
                    return
                end = max(end, text.at + 1)  # a stray bracket or comma ends where it begins
                value = Unreadable("not JSON", text.buffer[text.at : end].encode())
            text.at = end
            yield number, value
            break


def _element_end(buffer: str, start: int) -> int:
    """Where the bracketed or bare element at `start` ends, judged by brackets and quotes; -1: not here."""
    depth = 0
    in_string = False
    skip_at = -1
    for token in _TOKEN.finditer(buffer, start):
        at = token.start()
        if at == skip_at:
            continue
        mark = token.group()
        if mark == "\\":
            skip_at = at + 1
        elif mark == '"':
            in_string = not in_string
        elif in_string:
            continue
        elif mark in "{[":
            depth += 1
        elif mark == ",":
            if depth == 0:
                return at
        else:
            depth -= 1
            if depth <= 0:
                return at + (depth == 0)
    return -1
