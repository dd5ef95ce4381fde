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
    """A row has a list of integers, or several in a list, under `token_ids` or a like name."""

    name = "token-ids"
    rank = 40

    @classmethod
    def claims(cls, row: Any) -> bool:
        """A list of integers (or its JSON), or a list of such lists, under one of the usual names."""
        return isinstance(row, dict) and _key(row) is not None

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """One request a list; ids must fit 32 bits."""
        key = _key(row) if isinstance(row, dict) else None
        if key is None:
            raise BadRow(f"no list of integers under any of {', '.join(KEYS)}")
        values, step = structured(row[key])
        several = isinstance(values[0], list)
        prompts = values if several else [values]
        for ids in prompts:
            if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < 2**32 for one in ids):
                raise BadRow(f"{key} holds something that is no token id")
        output_tokens = count_or_none(row.get("output_length", row.get("output_tokens")))
        for at, ids in enumerate(prompts):
            where = key + step + (f"[{at}]" if several else "")
            yield Request(
                id=named(row, ID_KEYS) or f"{source.file}:{source.row}",
                source=source,
                arrival=time_of(row),
                session=session_of(row),
                tenant=tenant_of(row),
                model=named(row, ("model",)),
                token_ids=np.array(ids, dtype=np.uint32),
                output_tokens=None if several else output_tokens,
                paths={"token_ids": where} if where != "token_ids" else None,
            )


def _key(row: dict[str, Any]) -> str | None:
    for key in KEYS:
        values = structured(row[key])[0] if key in row else None
        if isinstance(values, list) and values:
            first = values[0][0] if isinstance(values[0], list) and values[0] else values[0]
            if type(first) is int:
                return key
    return None


FORMAT = TokenIdRows
