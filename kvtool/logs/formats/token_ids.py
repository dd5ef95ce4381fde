"""token-ids: prompts that are already tokenized."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvtool.logs.fields import (
    ID_KEYS,
    count_or_none,
    named,
    session_of,
    structured,
    tenant_of,
    time_of,
)
from kvtool.logs.format import BadRow, Format
from kvtool.requests import Request, Source

KEYS = ("token_ids", "prompt_token_ids", "input_ids", "tokens", "prompt_tokens", "prompt")


class TokenIdRows(Format):
    """A row has a list of integers under `token_ids` or a like name."""

    name = "token-ids"
    rank = 40

    @classmethod
    def claims(cls, row: Any) -> bool:
        """A list of integers (or its JSON) under one of the usual names."""
        return isinstance(row, dict) and _key(row) is not None

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """One request a row; ids must fit 32 bits."""
        key = _key(row) if isinstance(row, dict) else None
        if key is None:
            raise BadRow(f"no list of integers under any of {', '.join(KEYS)}")
        values, step = structured(row[key])
        if not all(type(value) is int and 0 <= value < 2**32 for value in values):
            raise BadRow(f"{key} holds something that is no token id")
        yield Request(
            id=named(row, ID_KEYS) or f"{source.file}:{source.row}",
            source=source,
            arrival=time_of(row),
            session=session_of(row),
            tenant=tenant_of(row),
            model=named(row, ("model",)),
            token_ids=np.array(values, dtype=np.uint32),
            output_tokens=count_or_none(row.get("output_length", row.get("output_tokens"))),
            paths={"token_ids": key + step} if key + step != "token_ids" else None,
        )


def _key(row: dict[str, Any]) -> str | None:
    for key in KEYS:
        values = structured(row[key])[0] if key in row else None
        if isinstance(values, list) and values and type(values[0]) is int:
            return key
    return None


FORMAT = TokenIdRows
