"""open_log: files of any known container and format -> one stream of requests."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from kvtool.errors import KvtoolError
from kvtool.logs import sources
from kvtool.logs.containers import Container, open_container
from kvtool.logs.format import BadRow, Format
from kvtool.logs.formats import FORMATS
from kvtool.logs.mapping import explain, mapped_format
from kvtool.logs.rows import Unreadable
from kvtool.logs.sources import Input
from kvtool.report import plural
from kvtool.requests import Request, Source

SNIFFED_ROWS = 40


@dataclass(frozen=True, slots=True)
class Row:
    """One row as it stands in the file, and the requests it holds. `value` is Unreadable for a broken row."""

    source: Source
    value: Any
    requests: list[Request]


@dataclass(frozen=True, slots=True)
class Skipped:
    """Rows that gave no request although they should have: how many, why, and where the first one is."""

    reason: str
    rows: int
    first: str

    def __str__(self) -> str:
        return f"{plural(self.rows, 'row')} skipped: {self.reason}, first at {self.first}"


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file whose container and format are known."""

    container: Container
    format: type[Format]

    @property
    def path(self) -> str:
        """As named by the user; of a zip's member, with the member."""
        return self.container.input.path


class Log:
    """A single pass over the requests of some files, in file order (not in time order).

    `skipped`, `notes` and `incomplete_prefix` are complete when the pass is.
    """

    def __init__(self, sources: list[LogFile], strict: bool) -> None:
        self.sources = sources
        self.files = [source.path for source in sources]
        self.format = ",".join(sorted({source.format.name for source in sources}))
        self.notes: list[str] = []
        self.incomplete_prefix = False
        self.strict = strict
        self._reasons: Counter[str] = Counter()
        self._first: dict[str, str] = {}
        self._shared: dict[str, Any] = {}

    @property
    def skipped(self) -> list[Skipped]:
        """Reasons with most rows first."""
        return [Skipped(reason, count, self._first[reason]) for reason, count in self._reasons.most_common()]

    def __iter__(self) -> Iterator[Request]:
        """The requests of all rows."""
        for row in self.rows():
            yield from row.requests

    def rows(self) -> Iterator[Row]:
        """Every row that is in the files, the unreadable ones too.

        Raises KvtoolError at the end if no row held a request, and at the first bad row under `strict`.
        """
        requests = timeless = 0
        for file in self.sources:
            for row in self._file_rows(file):
                requests += len(row.requests)
                timeless += sum(request.arrival is None for request in row.requests)
                yield row
        self.close(requests, timeless)

    def close(self, requests: int, timeless: int) -> None:
        """Say what only the whole pass can tell; KvtoolError if there was no request in it."""
        if requests == 0:
            raise KvtoolError(f"{self.files[0]}: no request could be read", self._why_nothing())
        if timeless == requests:
            self.note("no times in the log: requests are taken in file order")
        elif timeless:
            some = f"{timeless:,} of {plural(requests, 'request')}"
            self.note(f"no time in {some}: they keep their place in the file")

    def _file_rows(self, file: LogFile) -> Iterator[Row]:
        reader = self.reader_of(file)
        held: Row | None = None
        for number, value in file.container.read():
            source = Source(file.path, number)
            requests: list[Request] = []
            if isinstance(value, Unreadable):
                self.skip(value.reason, source)
            else:
                try:
                    requests.extend(reader.read(value, source))
                except BadRow as bad:
                    self.skip(str(bad), source)
            if held is not None:
                yield held
            held = Row(source, value, requests)
            self._inspect(requests)
        if held is not None:
            late = list(reader.finish())
            self._inspect(late)
            yield Row(held.source, held.value, [*held.requests, *late])
        self.finished(reader)

    def reader_of(self, file: LogFile) -> Format:
        """A fresh object that reads one file, told about its first rows if it wants to."""
        reader = file.format(self._shared)
        if reader.looks_ahead:
            reader.prepare(_head(file.container, reader.looks_ahead))
        return reader

    def finished(self, reader: Format) -> None:
        """Take over what a file's reader has to say at its end."""
        for reason, place in reader.lost:
            self.skip(reason, place)
        if reader.omitted:
            self.incomplete_prefix = True
            self.note(f"{reader.name} log without {reader.omitted}: the head of a prompt is not whole")
        for note in reader.notes:
            self.note(note)

    def _inspect(self, requests: list[Request]) -> None:
        for request in requests:
            if request.incomplete is not None:
                self.incomplete_prefix = True
                self.note(f"some requests are incomplete: {request.incomplete}")

    def note(self, note: str) -> None:
        """Keep what the user should know, once."""
        if note not in self.notes:
            self.notes.append(note)

    def skip(self, reason: str, source: Source) -> None:
        """Count a row that gave no request; under `strict` raise instead."""
        place = f"{source.file}:{source.row}"
        if self.strict:
            raise KvtoolError(f"{place}: {reason}", "leave out --strict to count such rows and go on")
        self._reasons[reason] += 1
        self._first.setdefault(reason, place)

    def _why_nothing(self) -> str:
        if not self._reasons:
            return self.sources[0].format.nothing
        reason, count = self._reasons.most_common(1)[0]
        return f"{plural(count, 'row')}: {reason}, first at {self._first[reason]}"


def open_log(
    paths: Sequence[str],
    *,
    format: str | None = None,
    mapping: Mapping[str, str] = {},
    strict: bool = False,
) -> Log:
    """A Log over files, globs, directories and `-`.

    `format` forces a format; `mapping` (our field -> path in a row) reads an unknown schema. Raises
    KvtoolError where a path is missing or no format claims any file; then it says what the rows have.
    """
    formats = [FORMATS.load(name) for name in FORMATS.names()]
    forced = mapped_format(mapping) if mapping else FORMATS.load(format) if format else None
    ranked: list[tuple[int, int, LogFile]] = []
    unknown: list[tuple[Container, Sequence[Any]]] = []
    for container in _containers(paths):
        head = _head(container)
        chosen = sniff(head, formats) if forced is None else forced
        if (mapping and forced is not None and not any(map(forced.claims, head))) or chosen is None:
            unknown.append((container, head))
        else:
            order = chosen.order(head[0]) if head else 0
            ranked.append((order, len(ranked), LogFile(container, chosen)))
    if not ranked and not unknown:
        raise KvtoolError(f"{', '.join(paths)}: no log files in the archive")
    if not ranked:
        raise _unreadable(*unknown[0], mapping)
    log = Log([file for _, _, file in sorted(ranked, key=lambda one: one[:2])], strict)
    for container, _ in unknown:
        log.skip("the file is in no known log format", Source(container.input.path, 1))
    return log


def _containers(paths: Sequence[str]) -> Iterator[Container]:
    for path in sources.expand(paths):
        if path == sources.STDIN or not sources.is_zip(path):
            yield open_container(Input(path))
            continue
        try:
            members = sources.zip_members(path)
        except sources.DAMAGED:
            yield Container(Input(path), "damaged")
            continue
        for member in members:
            yield open_container(Input(path, member))


def _unreadable(container: Container, head: Sequence[Any], mapping: Mapping[str, str]) -> KvtoolError:
    path = container.input.path
    if not head:
        first = next(iter(container.read()), None)
        if first is None:
            return KvtoolError(
                f"{path}: the file holds no rows", "is it the right one, and written to the end?"
            )
        number, value = first
        reason = f" (row {number}: {value.reason})" if isinstance(value, Unreadable) else ""
        return KvtoolError(
            f"{path}: no row can be decoded{reason}", "is it a log, whole, in UTF-8 and not encrypted?"
        )
    if mapping:
        return KvtoolError(f"{path}: nothing at the mapped path", explain(head))
    return KvtoolError(f"{path}: no known log format", explain(head))


def _head(container: Container, count: int = SNIFFED_ROWS) -> list[Any]:
    rows = islice(container.read(), count)
    return [value for _, value in rows if not isinstance(value, Unreadable)]


def sniff(head: Sequence[Any], formats: Sequence[type[Format]]) -> type[Format] | None:
    """The most particular of the formats that claim the first rows; None where none claims any."""
    claims = {kind: sum(kind.claims(row) for row in head) for kind in formats}
    most = max(claims.values(), default=0)
    if most == 0:
        return None
    return max((kind for kind in formats if claims[kind] * 2 >= most), key=lambda kind: kind.rank)
