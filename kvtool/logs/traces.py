"""Block-hash traces as columns: the same requests as row by row, read by compiled code a chunk at a time.

A chunk with anything unusual (a bad row, a blank line, a further column) is read row by row instead, so
both ways give the same requests and count the same bad rows.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from kvtool.logs import trace_parser
from kvtool.logs.fields import UNITS
from kvtool.logs.format import BadRow
from kvtool.logs.formats.block_hashes import BlockHashes
from kvtool.logs.reader import Log, LogFile
from kvtool.logs.rows import Unreadable, lines
from kvtool.logs.sources import DAMAGED
from kvtool.requests import Request, Source

CHUNK = 4 << 20
"""Bytes of JSON Lines that become one batch: small, so that its columns stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class TraceBatch:
    """r requests of a block-hash trace.

    rows: 1-based, int64 [r]; arrival: µs, -1 none, int64 [r]; tokens: of the prompt, int64 [r];
    output: tokens, -1 unknown, int64 [r]; request i's block ids are ids[offsets[i] : offsets[i + 1]],
    int64, the last one partial where tokens end inside it. names: [r] request ids, None for `file:row`;
    sessions, models, tenants: [r], or None where no request has one.
    """

    file: str
    block_size: int
    rows: NDArray[np.int64]
    arrival: NDArray[np.int64]
    tokens: NDArray[np.int64]
    output: NDArray[np.int64]
    offsets: NDArray[np.int64]
    ids: NDArray[np.int64]
    names: Sequence[str] | None = None
    sessions: Sequence[str | None] | None = None
    models: Sequence[str | None] | None = None
    tenants: Sequence[str | None] | None = None

    def __len__(self) -> int:
        return len(self.rows)


def trace_batches(log: Log) -> Iterator[TraceBatch] | None:
    """The log's requests as columns, if it is a block-hash trace in JSON Lines; else None, and nothing is
    read. It is the log's single pass: skipped rows and notes end up in `log` as they would row by row."""
    plain = all(file.format is BlockHashes and file.container.kind == "jsonl" for file in log.sources)
    return _batches(log) if plain else None


def _batches(log: Log) -> Iterator[TraceBatch]:
    requests = timeless = 0
    for file in log.sources:
        reader = log.reader_of(file)
        assert isinstance(reader, BlockHashes)
        with file.container.input.open() as stream:
            for batch in _file_batches(log, file, reader, stream):
                requests += len(batch)
                timeless += int((batch.arrival < 0).sum())
                yield batch
        log.finished(reader)
    log.close(requests, timeless)


def _file_batches(log: Log, file: LogFile, reader: BlockHashes, stream: IO[bytes]) -> Iterator[TraceBatch]:
    row, rest, ended = 1, b"", False
    while not ended:
        try:
            data = stream.read(CHUNK)
        except DAMAGED:
            log.skip("the compressed data is damaged or ends early", Source(file.path, row))
            return
        ended = not data
        text = rest + data
        cut = len(text) if ended else text.rfind(b"\n") + 1
        chunk, rest = text[:cut], text[cut:]
        if not chunk:
            continue
        count = chunk.count(b"\n") + (not chunk.endswith(b"\n"))
        batch = _columns(file.path, reader, chunk, row, count)
        if batch is not None:
            yield batch
        else:
            yield from _by_rows(log, file, reader, io.BytesIO(chunk), row)
        row += count


def _columns(path: str, reader: BlockHashes, chunk: bytes, row: int, count: int) -> TraceBatch | None:
    """The chunk of `count` lines as one batch; None where row by row might see it differently."""
    parsed = None if reader.dialect.deltas else trace_parser.parse(chunk, count)
    if parsed is None:
        return None
    times, fields, offsets, ids = parsed
    tokens, counts = fields[:, trace_parser.INPUT], fields[:, trace_parser.IDS]
    chat, parent = fields[:, trace_parser.CHAT], fields[:, trace_parser.PARENT]
    absent = trace_parser.ABSENT
    if (counts == absent).any() or (tokens < 0).any() or (tokens >= 2**60).any():
        return None
    size = reader.dialect.block_size
    if not ((tokens // size <= counts) & (counts <= -(-tokens // size))).all():
        return None
    arrival = _times(times, fields[:, trace_parser.TIMESTAMP], reader.dialect.unit)
    output = fields[:, trace_parser.OUTPUT]
    if arrival is None or ((output < 0) & (output != absent)).any() or (output >= 2**60).any():
        return None
    names: list[str] | None = None
    sessions: list[str | None] | None = None
    if (chat != absent).all():
        names = [str(one) for one in chat.tolist()]
        pairs = zip(chat.tolist(), parent.tolist(), strict=True)
        sessions = [reader.session(one, other) for one, other in pairs]
    elif (chat != absent).any():
        return None
    rows = np.arange(row, row + len(tokens))
    output = np.where(output == absent, -1, output)
    return TraceBatch(path, size, rows, arrival, tokens.copy(), output, offsets, ids, names, sessions)


def _times(
    times: NDArray[np.float64], given: NDArray[np.int64], unit: str | None
) -> NDArray[np.int64] | None:
    """Arrivals in µs as `microseconds` gives them, or None where it must be asked."""
    absent = given == trace_parser.ABSENT
    if absent.all():
        return np.full(len(given), -1, np.int64)
    if absent.any() or unit is None or times.min() < 0 or times.max() > 2**40:
        return None
    micros: NDArray[np.int64] = np.rint(times * UNITS[unit]).astype(np.int64)
    return micros


def _by_rows(log: Log, file: LogFile, reader: BlockHashes, stream: Any, first: int) -> Iterator[TraceBatch]:
    """One batch of what the rows hold; bad ones are counted in `log`."""
    found: list[Request] = []
    for number, value in lines(stream):
        source = Source(file.path, first + number - 1)
        if isinstance(value, Unreadable):
            log.skip(value.reason, source)
            continue
        try:
            found.extend(reader.read(value, source))
        except BadRow as bad:
            log.skip(str(bad), source)
    if found:
        yield _stacked(file.path, found)


def _stacked(path: str, found: Sequence[Request]) -> TraceBatch:
    blocks = [request.block_ids for request in found if request.block_ids is not None]
    offsets = np.zeros(len(blocks) + 1, np.int64)
    np.cumsum([len(one.ids) for one in blocks], out=offsets[1:])
    named: list[list[Any] | None] = [
        [getattr(request, field) for request in found] if any(getattr(r, field) for r in found) else None
        for field in ("session", "model", "tenant")
    ]
    arrivals = [-1 if request.arrival is None else request.arrival for request in found]
    outputs = [-1 if request.output_tokens is None else request.output_tokens for request in found]
    return TraceBatch(
        path,
        blocks[0].block_size,
        np.array([request.source.row for request in found], np.int64),
        np.array(arrivals, np.int64),
        np.array([one.tokens for one in blocks], np.int64),
        np.array(outputs, np.int64),
        offsets,
        np.concatenate([one.ids for one in blocks]),
        [request.id for request in found],
        *named,
    )
