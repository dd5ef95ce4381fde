"""Columnar container: Parquet, nested lists and structs included -> rows, and back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvtool.logs.rows import Numbered, Unreadable

BATCH = 1024
"""Table rows decoded at a time."""


def parquet_rows(path: Path) -> Iterator[Numbered]:
    """Rows of a Parquet file. Members that a struct column has and this row lacks are absent."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH):
                for row in batch.to_pylist(maps_as_pydicts="lossy"):
                    number += 1
                    yield number, {key: _without_nulls(value) for key, value in row.items()}
    except (pa.ArrowException, OSError, ValueError, UnicodeDecodeError) as error:
        yield number + 1, Unreadable(f"not readable as Parquet ({type(error).__name__})")


def parquet_schema(path: Path) -> Any:
    """The Arrow schema, for writing the same columns back."""
    import pyarrow.parquet as pq

    return pq.read_schema(path)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value
