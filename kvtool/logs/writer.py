"""Writing edited rows back in the container they came from, whole or not at all."""

import csv
import gzip
import io
import json
import os
import shutil
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from kvtool.errors import KvtoolError
from kvtool.files import whole
from kvtool.logs import tables
from kvtool.logs.containers import Container
from kvtool.logs.documents import csv_table
from kvtool.logs.reader import Log
from kvtool.logs.rows import Unreadable
from kvtool.logs.sources import COMPRESSIONS, STDIN
from kvtool.requests import Source

GROUP = 4096
"""Table rows written at a time."""

Rows = Iterable[tuple[Source, Any]]


def write_log(path: str | Path, rows: Rows, like: Log) -> None:
    """Write `rows` (in the order of `like.rows()`) in the container and format that `like` has.

    A log of several files becomes a folder of files with their names, and with their own folders where names
    repeat; `.gz` and `.zst` go by the name to be written. Each file is whole or absent. Raises KvtoolError
    for a target that is one of the inputs.
    """
    target = Path(path)
    containers = {file.path: file.container for file in like.sources}
    inputs = list(dict.fromkeys(container.input.file for container in containers.values()))
    grouped = groupby(rows, key=lambda row: containers[row[0].file].input.file)
    if len(inputs) == 1:
        if target.is_dir():
            raise KvtoolError(
                f"{target} is a folder", f"name a file, such as {target / Path(inputs[0]).name}"
            )
        for file, group in grouped:
            _write_file(target, file, group, containers)
        return
    if target.exists() and not target.is_dir():
        raise KvtoolError(f"{target} is a file", "several logs are written into a folder")
    names = _names(inputs)
    for name in names.values():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
    for file, group in grouped:
        _write_file(target / names[file], file, group, containers)


def _names(inputs: list[str]) -> dict[str, Path]:
    """Input -> its name in the output folder: with its own folders where two have the same name."""
    names = {file: Path(Path(file).name) for file in inputs}
    if len(set(names.values())) == len(names):
        return names
    whole_paths = {file: Path(file).resolve() for file in inputs}
    root = os.path.commonpath([path.parent for path in whole_paths.values()])
    return {file: path.relative_to(root) for file, path in whole_paths.items()}


def _write_file(target: Path, file: str, rows: Rows, containers: dict[str, Container]) -> None:
    if file != STDIN and target.exists() and target.samefile(file):
        raise KvtoolError(f"{target} is the input", "write to another file")
    members = [container for container in containers.values() if container.input.file == file]
    with whole(target) as temporary:
        if members[0].input.member is not None:
            _write_zip(temporary, file, rows, containers)
        elif members[0].kind == "parquet":
            _write_parquet(temporary, (value for _, value in rows), members[0])
        else:
            with temporary.open("wb") as raw, _compressed(raw, COMPRESSIONS.get(target.suffix)) as out:
                _write_text(out, (value for _, value in rows), members[0])


def _write_zip(target: Path, file: str, rows: Rows, containers: dict[str, Container]) -> None:
    """The archive again: members that are logs from `rows`, the others as they are."""
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        logs = {one.input.member for one in containers.values() if one.input.file == file}
        for info in old.infolist():
            if info.filename not in logs:
                with old.open(info) as source, new.open(_named(info), "w") as out:
                    shutil.copyfileobj(source, out)
        for name, group in groupby(rows, key=lambda row: row[0].file):
            container = containers[name]
            assert container.input.member is not None
            if container.kind == "parquet":
                raise KvtoolError(f"{name}: a Parquet file in a zip cannot be written", "unpack it first")
            member = _named(old.getinfo(container.input.member))
            with new.open(member, "w") as raw:
                suffix = Path(container.input.member).suffix
                with _compressed(raw, COMPRESSIONS.get(suffix)) as out:
                    _write_text(out, (value for _, value in group), container)


def _named(info: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """A fresh entry with the old one's name and time."""
    entry = zipfile.ZipInfo(info.filename, info.date_time)
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _write_text(out: IO[bytes], values: Iterator[Any], like: Container) -> None:
    match like.kind:
        case "array":
            out.write(b"[")
            for index, value in enumerate(values):
                out.write((b",\n" if index else b"\n") + _encoded(value, None))
            out.write(b"\n]\n")
        case "yaml":
            import yaml

            good = (value for value in values if not isinstance(value, Unreadable))
            text = yaml.safe_dump_all(good, allow_unicode=True, sort_keys=False, width=110)
            out.write(text.encode())
        case "csv" | "tsv":
            _write_csv(out, values, like)
        case _:
            indent = 2 if like.kind == "values" else None
            for value in values:
                out.write(_encoded(value, indent) + b"\n")


def _encoded(value: Any, indent: int | None) -> bytes:
    if isinstance(value, Unreadable):
        return (value.raw or b"").rstrip(b"\r\n")
    return json.dumps(value, ensure_ascii=False, indent=indent).encode("utf-8", "replace")


def _write_csv(out: IO[bytes], values: Iterator[Any], like: Container) -> None:
    with like.input.open() as stream:
        reader, delimiter = csv_table(stream, tabs=like.kind == "tsv")
        header: list[str] = next(reader, [])
    text = io.TextIOWrapper(out, "utf-8", newline="", write_through=True)
    writer = csv.DictWriter(text, header, delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(value for value in values if not isinstance(value, Unreadable))
    text.detach()


@contextmanager
def _compressed(raw: IO[bytes], compression: str | None) -> Iterator[IO[bytes]]:
    if compression == "gz":
        with gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as stream:
            yield stream  # type: ignore[misc]
    elif compression == "zst":
        import zstandard

        with zstandard.ZstdCompressor().stream_writer(raw, closefd=False) as stream:
            yield stream
    else:
        yield raw


def _write_parquet(target: Path, values: Iterator[Any], like: Container) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = tables.parquet_schema(like.input.local())
    with pq.ParquetWriter(target, schema) as out:
        group: list[Any] = []
        for value in values:
            if not isinstance(value, Unreadable):
                group.append(value)
            if len(group) == GROUP:
                out.write_table(pa.Table.from_pylist(group, schema=schema))
                group = []
        if group:
            out.write_table(pa.Table.from_pylist(group, schema=schema))
