"""index.parquet: one row per stored block, in shard order. What makes a lookup, and what proves a block."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvtool.blocks import BlockHash, TokenIds, fingerprint
from kvtool.errors import KvtoolError


@dataclass(frozen=True, slots=True)
class BlockRow:
    """A stored block. `parent` is the chain's root at depth 0. tokens: uint32 [block_size].

    shard: number of its file; row: place in that file; offset, bytes: where in the file it stands.
    codec: a key of the manifest's codecs. checksum: `block_checksum` of the stored bytes.
    expected_hits: requests of the log that would use it; kl: nats that its codec costs, None unmeasured.
    """

    hash: BlockHash
    parent: BlockHash
    depth: int
    tokens: TokenIds
    shard: int
    row: int
    offset: int
    bytes: int
    codec: str
    checksum: str
    expected_hits: float
    kl: float | None


def block_checksum(block: BlockHash, data: bytes | bytearray | memoryview) -> str:
    """32 hex digits over a block's hash and its stored bytes: bytes under another name fail too."""
    return fingerprint(block, data)


def _schema(block_size: int) -> Any:
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("hash", pa.binary(16), nullable=False),
            pa.field("parent", pa.binary(16), nullable=False),
            pa.field("depth", pa.int32(), nullable=False),
            pa.field(
                "tokens", pa.list_(pa.field("id", pa.uint32(), nullable=False), block_size), nullable=False
            ),
            pa.field("shard", pa.int32(), nullable=False),
            pa.field("row", pa.int32(), nullable=False),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("bytes", pa.int64(), nullable=False),
            pa.field("codec", pa.string(), nullable=False),
            pa.field("checksum", pa.string(), nullable=False),
            pa.field("expected_hits", pa.float64(), nullable=False),
            pa.field("kl", pa.float64()),
        ]
    )


def index_to_bytes(rows: Iterable[BlockRow], block_size: int) -> bytes:
    """The Parquet file for `rows`, sorted by shard and row. Same rows and pyarrow, same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ordered = sorted(rows, key=lambda row: (row.shard, row.row))
    schema = _schema(block_size)
    tokens = np.concatenate([row.tokens for row in ordered]) if ordered else np.zeros(0, np.uint32)
    columns = []
    for field in schema:
        if field.name == "tokens":
            columns.append(pa.FixedSizeListArray.from_arrays(pa.array(tokens, pa.uint32()), type=field.type))
        else:
            columns.append(pa.array([getattr(row, field.name) for row in ordered], field.type))
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_arrays(columns, schema=schema),
        sink,
        compression="zstd",
        version="2.6",
        data_page_version="1.0",
        use_dictionary=["codec", "parent"],
        write_statistics=True,
        row_group_size=65536,
    )
    return bytes(sink.getvalue())


def index_from_bytes(data: bytes, block_size: int, name: str) -> list[BlockRow]:
    """Inverse of `index_to_bytes`; a file of another shape is an error that names the column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise KvtoolError(f"{name}: not readable as Parquet: {str(error).splitlines()[0]}") from error
    for field in _schema(block_size):
        if field.name not in table.column_names or table.schema.field(field.name).type != field.type:
            raise KvtoolError(f"{name}: column {field.name} is missing or not {field.type}")
    ids = table["tokens"].combine_chunks().flatten().to_numpy().reshape(-1, block_size)
    lists: dict[str, Sequence[Any]] = {
        field.name: table[field.name].to_pylist() for field in _schema(block_size) if field.name != "tokens"
    }
    return [
        BlockRow(tokens=ids[at], **{column: values[at] for column, values in lists.items()})
        for at in range(table.num_rows)
    ]
