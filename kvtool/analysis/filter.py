"""--where: keep the requests for which a DuckDB expression over their columns is true."""

from collections.abc import Sequence

import pyarrow as pa

from kvtool.errors import KvtoolError
from kvtool.requests import Request

COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("file", pa.string()),
        ("row", pa.int64()),
        ("arrival", pa.timestamp("us")),
        ("session", pa.string()),
        ("tenant", pa.string()),
        ("model", pa.string()),
        ("messages", pa.int32()),
        ("tools", pa.int32()),
        ("prompt_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
    ]
)
"""What an expression may name; arrival is UTC, messages and tools are counts."""


class RowFilter:
    """One compiled expression, applied batch by batch: it sees a row at a time, never the whole log."""

    def __init__(self, expression: str) -> None:
        import duckdb

        self.expression = expression
        self._connection = duckdb.connect(config={"enable_external_access": "false", "threads": "1"})
        self.keep([], [])  # a wrong expression fails here, before any log is read

    def keep(self, requests: Sequence[Request], prompt_tokens: Sequence[int]) -> list[int]:
        """Indices of the requests to keep; NULL is not true."""
        import duckdb

        self._connection.register("requests", _table(requests, prompt_tokens))
        query = f"SELECT number FROM requests WHERE ({self.expression}\n) ORDER BY number"
        try:
            return [row[0] for row in self._connection.execute(query).fetchall()]
        except duckdb.Error as error:
            raise KvtoolError(
                f"--where {self.expression}: {str(error).splitlines()[0]}",
                f"columns: {', '.join(COLUMNS.names)}",
            ) from error


def _table(requests: Sequence[Request], prompt_tokens: Sequence[int]) -> pa.Table:
    columns = [
        pa.array([request.id for request in requests], pa.string()),
        pa.array([request.source.file for request in requests], pa.string()),
        pa.array([request.source.row for request in requests], pa.int64()),
        pa.array([request.arrival for request in requests], pa.timestamp("us")),
        pa.array([request.session for request in requests], pa.string()),
        pa.array([request.tenant for request in requests], pa.string()),
        pa.array([request.model for request in requests], pa.string()),
        pa.array([len(request.messages or ()) for request in requests], pa.int32()),
        pa.array([len(request.tools or ()) for request in requests], pa.int32()),
        pa.array(prompt_tokens, pa.int64()),
        pa.array([request.output_tokens for request in requests], pa.int64()),
    ]
    table = pa.Table.from_arrays(columns, schema=COLUMNS)
    return table.append_column("number", pa.array(range(len(requests)), pa.int64()))
