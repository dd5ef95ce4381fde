"""YAML documents and CSV tables -> rows."""

import csv
import io
import sys
from collections.abc import Iterator
from itertools import chain
from typing import IO, Any

from kvtool.logs.rows import Numbered, Unreadable
from kvtool.logs.sources import DAMAGED

SPARE = 100_000
"""Values that a YAML document may have beyond two for each of its bytes: aliases can make it grow."""


def yaml_documents(stream: IO[bytes]) -> Iterator[Numbered]:
    """Every document of a YAML file is a row. Times stay text; no tag makes an object."""
    import yaml

    number = 0
    try:
        data = stream.read()
        for document in yaml.load_all(data, Loader=_loader(yaml)):
            number += 1
            yield number, _Plain(SPARE + 2 * len(data)).value(document, 0)
    except DAMAGED:
        yield number + 1, Unreadable("the compressed data is damaged or ends early")
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, OverflowError, MemoryError):
        yield number + 1, Unreadable("not YAML")


def _loader(yaml: Any) -> Any:
    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    resolvers = {
        letter: [(tag, pattern) for tag, pattern in pairs if tag != "tag:yaml.org,2002:timestamp"]
        for letter, pairs in base.yaml_implicit_resolvers.items()
    }
    return type("TextTimesLoader", (base,), {"yaml_implicit_resolvers": resolvers})


class _Plain:
    """YAML's values as JSON's: text keys, bytes as text, sets as lists, aliases written out."""

    def __init__(self, room: int) -> None:
        self._room = room

    def value(self, value: Any, depth: int) -> Any:
        self._room -= 1
        if self._room < 0 or depth > 200:
            raise ValueError("too large or too deep")
        if isinstance(value, dict):
            return {
                key if isinstance(key, str) else str(key): self.value(item, depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple | set):
            return [self.value(item, depth + 1) for item in value]
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, str):
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if value is None or isinstance(value, bool | int | float):
            return value
        return str(value)


def csv_table(stream: IO[bytes], tabs: bool) -> tuple[Any, str]:
    """(a csv reader of the whole, its delimiter): a comma, unless the header line only has tabs, semicolons
    or bars. tabs: it is a tab."""
    text = io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="")
    header = text.readline()
    delimiter = "\t" if tabs else next((one for one in ",\t;|" if one in header), ",")
    return csv.reader(chain([header] if header else [], text), delimiter=delimiter), delimiter


def csv_rows(stream: IO[bytes], tabs: bool) -> Iterator[Numbered]:
    """Rows of a CSV with a header; cells are text, empty ones absent. Row numbers leave the header out."""
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    number = 0
    try:
        reader, _ = csv_table(stream, tabs)
    except DAMAGED:
        yield 1, Unreadable("the compressed data is damaged or ends early")
        return
    header: list[str] | None = None
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except DAMAGED:
            yield number + 1, Unreadable("the compressed data is damaged or ends early")
            return
        except csv.Error:
            number += 1
            yield number, Unreadable("not CSV")
            continue
        if header is None:
            header = cells
            continue
        if not cells:
            continue
        number += 1
        if len(cells) != len(header):
            yield number, Unreadable("the number of cells is not the header's")
            continue
        yield number, {name: cell for name, cell in zip(header, cells, strict=True) if cell != ""}
