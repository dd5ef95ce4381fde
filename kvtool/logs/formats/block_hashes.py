"""block-hashes: traces that give a prompt as block ids (Mooncake, 512 tokens a block, times in ms)."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvtool.logs.fields import count_or_none, microseconds, named, session_of, structured, tenant_of
from kvtool.logs.format import BadRow, Format
from kvtool.requests import BlockIds, Request, Source


class BlockHashes(Format):
    """A row has `hash_ids` and `input_length`."""

    name = "block-hashes"
    rank = 80

    @classmethod
    def claims(cls, row: Any) -> bool:
        """`hash_ids` beside `input_length`."""
        return (
            isinstance(row, dict)
            and isinstance(structured(row.get("hash_ids"))[0], list)
            and "input_length" in row
        )

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """One request a row."""
        if not isinstance(row, dict) or "hash_ids" not in row:
            raise BadRow("no `hash_ids` in the row")
        ids, _ = structured(row["hash_ids"])
        if not isinstance(ids, list) or not all(
            type(value) is int and -(2**63) <= value < 2**63 for value in ids
        ):
            raise BadRow("hash_ids is not a list of integers")
        tokens = count_or_none(row.get("input_length"))
        if tokens is None:
            raise BadRow("input_length is not a count")
        if len(ids) != -(-tokens // 512):
            raise BadRow("hash_ids does not fit input_length")
        yield Request(
            id=named(row, ("request_id", "id")) or f"{source.file}:{source.row}",
            source=source,
            arrival=microseconds(row.get("timestamp"), "ms"),
            session=session_of(row),
            tenant=tenant_of(row),
            model=named(row, ("model",)),
            block_ids=BlockIds(np.array(ids, dtype=np.int64), 512, tokens),
            output_tokens=count_or_none(row.get("output_length")),
        )


FORMAT = BlockHashes
