"""Which container a file is, told by its bytes first and its name second."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvtool.logs import documents, rows, tables
from kvtool.logs.rows import Numbered, Unreadable
from kvtool.logs.sources import DAMAGED, Input, inner_suffix

HEAD = 1 << 16
BY_SUFFIX = {".yaml": "yaml", ".yml": "yaml", ".csv": "csv", ".tsv": "tsv"}


@dataclass(slots=True)
class Container:
    """A file that is about to be read as `kind`: jsonl, array, values, parquet, yaml, csv, tsv, damaged."""

    input: Input
    kind: str

    def read(self) -> Iterator[Numbered]:
        """(row number, value or Unreadable), streaming."""
        try:
            if self.kind == "parquet":
                yield from tables.parquet_rows(self.input.local())
            elif self.kind == "damaged":
                yield 1, Unreadable("not readable as zip")
            else:
                with self.input.open() as stream:
                    yield from self._text_rows(stream)
        except DAMAGED:
            yield 1, Unreadable("the compressed data is damaged or ends early")

    def _text_rows(self, stream: Any) -> Iterator[Numbered]:
        match self.kind:
            case "jsonl":
                return rows.lines(stream)
            case "yaml":
                return documents.yaml_documents(stream)
            case "csv" | "tsv":
                return documents.csv_rows(stream, tabs=self.kind == "tsv")
        return rows.values(stream, array=self.kind == "array")


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
    by_name = BY_SUFFIX.get(inner_suffix(source.path))
    if by_name is not None:
        return Container(source, by_name)
    text = (head + rest).removeprefix(b"\xef\xbb\xbf").lstrip()
    first_line, _, others = text.partition(b"\n")
    if _is_json(first_line):
        single_array = first_line.startswith(b"[") and not others.strip() and not follows
        return Container(source, "array" if single_array else "jsonl")
    whole = _whole_lines(others)
    if text.startswith(b"["):  # of an array with an element a line, the last one stands alone
        return Container(source, "jsonl" if sum(whole) > len(whole) / 2 else "array")
    return Container(source, "values" if text.startswith(b"{") and not any(whole) else "jsonl")


def _is_json(line: bytes) -> bool:
    try:
        rows.decode(line.decode())
    except ValueError:
        return False
    return True


def _whole_lines(text: bytes) -> list[bool]:
    """Which later lines are objects by themselves: then a broken first line is a bad row of JSON Lines."""
    return [line[:1] == b"{" and _is_json(line) for line in text.splitlines()[:50]]
