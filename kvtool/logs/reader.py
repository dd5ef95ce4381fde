"""open_log: files of any known container and format -> one stream of requests."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from kvtool.errors import KvtoolError
from kvtool.logs.containers import Container, open_container
from kvtool.logs.format import BadRow, Format
from kvtool.logs.formats import FORMATS
from kvtool.logs.rows import Unreadable
from kvtool.logs.sources import Input, expand
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


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file whose container and format are known."""

    container: Container
    format: type[Format]

    @property
    def path(self) -> str:
        """As named by the user."""
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
        self._strict = strict
        self._reasons: Counter[str] = Counter()
        self._first: dict[str, str] = {}

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
        if requests == 0:
            raise KvtoolError(f"{self.files[0]}: no request could be read", self._why_nothing())
        if timeless == requests:
            self._note("no times in the log: requests are taken in file order")
        elif timeless:
            self._note(f"{timeless} of {requests} requests have no time: they keep their place in the file")

    def _file_rows(self, file: LogFile) -> Iterator[Row]:
        reader = file.format()
        held: Row | None = None
        for number, value in file.container.read():
            source = Source(file.path, number)
            requests: list[Request] = []
            if isinstance(value, Unreadable):
                self._skip(value.reason, source)
            else:
                try:
                    requests.extend(reader.read(value, source))
                except BadRow as bad:
                    self._skip(str(bad), source)
            if held is not None:
                yield held
            held = Row(source, value, requests)
            self._inspect(requests)
        if held is not None:
            late = list(reader.finish())
            self._inspect(late)
            yield Row(held.source, held.value, [*held.requests, *late])
        if file.format.omits:
            self.incomplete_prefix = True
            self._note(
                f"{file.format.name} logs record no {file.format.omits}: the head of a prompt is not whole"
            )
        for note in reader.notes:
            self._note(note)

    def _inspect(self, requests: list[Request]) -> None:
        for request in requests:
            if request.incomplete is not None:
                self.incomplete_prefix = True
                self._note(f"some requests are incomplete: {request.incomplete}")

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _skip(self, reason: str, source: Source) -> None:
        place = f"{source.file}:{source.row}"
        if self._strict:
            raise KvtoolError(f"{place}: {reason}", "leave out --strict to count such rows and go on")
        self._reasons[reason] += 1
        self._first.setdefault(reason, place)

    def _why_nothing(self) -> str:
        if not self._reasons:
            return "the files hold no rows"
        reason, count = self._reasons.most_common(1)[0]
        return f"{count} rows: {reason}, first at {self._first[reason]}"


def open_log(
    paths: Sequence[str],
    *,
    format: str | None = None,
    mapping: Mapping[str, str] = {},
    strict: bool = False,
) -> Log:
    """A Log over files, globs, directories and `-`.

    `format` forces a format; `mapping` (our field -> path in a row) reads an unknown schema. Raises
    KvtoolError where a path is missing or no format claims any file.
    """
    forced = FORMATS.load(format) if format else None
    formats = [FORMATS.load(name) for name in FORMATS.names()]
    sources: list[LogFile] = []
    unknown: list[str] = []
    for path in expand(paths):
        container = open_container(Input(path))
        chosen = forced or sniff(container, formats)
        if chosen is None:
            unknown.append(path)
        else:
            sources.append(LogFile(container, chosen))
    if not sources:
        raise KvtoolError(
            f"{unknown[0]}: no known log format", f"--format takes {', '.join(FORMATS.names())}"
        )
    log = Log(sources, strict)
    for path in unknown:
        if strict:
            raise KvtoolError(f"{path}: no known log format", "name its --format, or leave the file out")
        log._skip("the file is in no known log format", Source(path, 1))
    return log


def sniff(container: Container, formats: Sequence[type[Format]]) -> type[Format] | None:
    """The most particular of the formats that claim the first rows; None where none claims any."""
    head = [value for _, value in islice(container.read(), SNIFFED_ROWS) if not isinstance(value, Unreadable)]
    claims = {kind: sum(kind.claims(row) for row in head) for kind in formats}
    most = max(claims.values(), default=0)
    if most == 0:
        return None
    return max((kind for kind in formats if claims[kind] * 2 >= most), key=lambda kind: kind.rank)
