"""Writing edited rows back in the container they came from, whole or not at all."""

import gzip
import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from kvtool.errors import KvtoolError
from kvtool.files import whole
from kvtool.logs import tables
from kvtool.logs.reader import Log, LogFile
from kvtool.logs.rows import Unreadable
from kvtool.requests import Source

GROUP = 4096
"""Table rows written at a time."""


def write_log(path: str | Path, rows: Iterable[tuple[Source, Any]], like: Log) -> None:
    """Write `rows` (in the order of `like.rows()`) in the container and format that `like` has.

    A log of several files becomes a folder of files with their names. Atomic per file. Raises
    KvtoolError for a target that is one of the inputs, or a container that cannot be written.
    """
    target = Path(path)
    if len(like.sources) == 1:
        _write_file(target, (value for _, value in rows), like.sources[0])
        return
    names = [Path(file).name for file in like.files]
    if len(set(names)) < len(names):
        raise KvtoolError(f"{target}: several input files have the same name", "normalize them one by one")
    target.mkdir(parents=True, exist_ok=True)
    by_path = {source.path: source for source in like.sources}
    for file, group in groupby(rows, key=lambda row: row[0].file):
        _write_file(target / Path(file).name, (value for _, value in group), by_path[file])


def _write_file(target: Path, values: Iterator[Any], like: LogFile) -> None:
    if target.exists() and Path(like.path).exists() and target.samefile(like.path):
        raise KvtoolError(f"{target} is the input", "write to another file")
    if not target.parent.is_dir():
        raise KvtoolError(f"{target.parent}: no such folder")
    if like.container.kind == "parquet":
        _write_parquet(target, values, like)
        return
    compression = {".gz": "gz", ".zst": "zst"}.get(target.suffix) or (
        like.container.input.compression if not target.suffix else None
    )
    with whole(target) as temporary, temporary.open("wb") as raw, _compressed(raw, compression) as out:
        if like.container.kind == "array":
            _write_array(out, values)
        else:
            indent = 2 if like.container.kind == "values" else None
            for value in values:
                out.write(_encoded(value, indent))
                out.write(b"\n")


def _write_array(out: IO[bytes], values: Iterator[Any]) -> None:
    out.write(b"[")
    for index, value in enumerate(values):
        out.write(b",\n" if index else b"\n")
        out.write(_encoded(value, None))
    out.write(b"\n]\n")


def _encoded(value: Any, indent: int | None) -> bytes:
    if isinstance(value, Unreadable):
        return (value.raw or b"").rstrip(b"\r\n")
    return json.dumps(value, ensure_ascii=False, indent=indent).encode("utf-8", "replace")


@contextmanager
def _compressed(raw: IO[bytes], compression: str | None) -> Iterator[IO[bytes]]:
    if compression == "gz":
        with gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as stream:
            yield io.BufferedWriter(stream)  # type: ignore[arg-type]
    elif compression == "zst":
        import zstandard

        with zstandard.ZstdCompressor().stream_writer(raw, closefd=False) as stream:
            yield stream
    else:
        yield raw


def _write_parquet(target: Path, values: Iterator[Any], like: LogFile) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = tables.parquet_schema(like.container.input.local())
    with whole(target) as temporary, pq.ParquetWriter(temporary, schema) as out:
        group: list[Any] = []
        for value in values:
            if not isinstance(value, Unreadable):
                group.append(value)
            if len(group) == GROUP:
                out.write_table(pa.Table.from_pylist(group, schema=schema))
                group = []
        if group:
            out.write_table(pa.Table.from_pylist(group, schema=schema))
