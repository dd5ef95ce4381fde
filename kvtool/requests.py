"""The Request record: what a log row says, in one shape whatever the log's format."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtool.blocks import TokenIds

Message = dict[str, Any]
"""An OpenAI chat message: role, content (string, parts or None), tool_calls, tool_call_id, name."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a request came from. `row` is 1-based: a JSONL line, a JSON array element, a table row."""

    file: str
    row: int


@dataclass(frozen=True, slots=True)
class BlockIds:
    """A prompt that a trace gives as ready-made block ids, each naming the whole prefix up to it.

    ids: int64 [n]; the last one may name a partial block, so n is ceil(tokens / block_size).
    """

    ids: NDArray[np.int64]
    block_size: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Request:
    """One model call. Exactly one of `messages`, `text`, `token_ids`, `block_ids` holds the prompt.

    `arrival` is in microseconds UTC (None: the log has no times, file order counts).
    `paths` maps our path prefixes to the source's where they differ, such as {"messages": "traj"}, or to
    `in_row` of another row.
    output_ids: token ids as the model generated them, where a log has them.
    `incomplete` says why the log cannot show the whole prompt (None: it can).
    """

    id: str
    source: Source
    arrival: int | None = None
    session: str | None = None
    tenant: str | None = None
    model: str | None = None
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    text: str | None = None
    token_ids: TokenIds | None = None
    block_ids: BlockIds | None = None
    output: Message | str | None = None
    output_tokens: int | None = None
    output_ids: tuple[int, ...] | None = None
    paths: Mapping[str, str] | None = None
    incomplete: str | None = None

    def source_path(self, path: str) -> str:
        """`path` as it reads in the source row: the longest mapped prefix is replaced."""
        if self.paths:
            for ours in sorted(self.paths, key=len, reverse=True):
                if path == ours or path.startswith((ours + "[", ours + ".")):
                    return self.paths[ours] + path[len(ours) :]
        return path

    def holds(self, path: str) -> bool:
        """Whether the request's own row has what stands at `path`."""
        return not self.source_path(path).startswith(_ANOTHER)


def in_row(row: int, path: str) -> str:
    """A place in another row than the request's own."""
    return path if path.startswith(_ANOTHER) else f"{_ANOTHER}{row}) {path}"


_ANOTHER = "(row "
