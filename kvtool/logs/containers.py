"""Which container a file is, told by its bytes first and its name second."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvtool.logs import rows, tables
from kvtool.logs.rows import Numbered, Unreadable
from kvtool.logs.sources import DAMAGED, Input

HEAD = 1 << 16


@dataclass(slots=True)
class Container:
    """A file that is about to be read as `kind`: jsonl, array, values, parquet."""

    input: Input
    kind: str
    schema: Any = None

    def read(self) -> Iterator[Numbered]:
        """(row number, value or Unreadable), streaming."""
        if self.kind == "parquet":
            try:
                yield from tables.parquet_rows(self.input.local())
            except DAMAGED:
                yield 1, Unreadable("the compressed data is damaged or ends early")
            return
        with self.input.open() as stream:
            if self.kind == "jsonl":
                yield from rows.lines(stream)
            else:
                yield from rows.values(stream, array=self.kind == "array")


def open_container(source: Input) -> Container:
    """The container of `source`; raises KvtoolError only where the file cannot be opened."""
    try:
        with source.open() as stream:
            head = stream.read(HEAD)
            rest = b"" if b"\n" in head else stream.readline()
            follows = bool(stream.read(1))
    except DAMAGED:
        head, rest, follows = b"", b"", False
    if head.startswith(b"PAR1"):
        return Container(source, "parquet")
    text = (head + rest).removeprefix(b"\xef\xbb\xbf").lstrip()
    first_line, _, others = text.partition(b"\n")
    if _is_json(first_line):
        single_array = first_line.startswith(b"[") and not others.strip() and not follows
        return Container(source, "array" if single_array else "jsonl")
    if text.startswith(b"["):
        return Container(source, "array")
    return Container(source, "values" if text.startswith(b"{") and not _has_json_line(others) else "jsonl")


def _is_json(line: bytes) -> bool:
    try:
        rows.decode(line.decode())
    except ValueError:
        return False
    return True


def _has_json_line(text: bytes) -> bool:
    """Whether a later line is an object by itself: then a broken first line is a bad row of JSON Lines."""
    return any(line[:1] == b"{" and _is_json(line) for line in text.splitlines()[:50])
