"""block-hashes: traces that give a prompt as block ids (Mooncake, Bailian, per-turn deltas)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtool.logs.fields import count_or_none, microseconds, named, session_of, structured, tenant_of
from kvtool.logs.format import BadRow, Format
from kvtool.requests import BlockIds, Request, Source

BLOCK_SIZES = (512, 16, 64, 32, 128, 256, 1024, 8)
"""Tried in this order: Mooncake cuts by 512 tokens, Bailian by 16."""

INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a trace is to be read. `deltas`: a turn's ids continue those of its session's earlier turns."""

    block_size: int = 512
    unit: str | None = "ms"
    deltas: bool = False


class BlockHashes(Format):
    """A row has `hash_ids` and `input_length`; `chat_id` and `parent_chat_id` chain Bailian's turns."""

    name = "block-hashes"
    rank = 80
    looks_ahead = 500

    def __init__(self, shared: dict[str, Any] | None = None) -> None:
        super().__init__(shared)
        self.dialect = Dialect()
        self._roots: dict[int, int] = {}
        self._earlier: dict[str, NDArray[np.int64]] = {}

    @classmethod
    def claims(cls, row: Any) -> bool:
        """`hash_ids` beside `input_length`."""
        return (
            isinstance(row, dict)
            and isinstance(structured(row.get("hash_ids"))[0], list)
            and "input_length" in row
        )

    def prepare(self, head: Sequence[Any]) -> None:
        """Tell the trace's dialect from its first rows."""
        self.dialect = dialect_of([row for row in head if self.claims(row)])
        if self.dialect.deltas:
            self.notes.append(
                "each turn gives only its new blocks: they are added to the session's earlier ones"
            )

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """One request a row."""
        if not isinstance(row, dict) or "hash_ids" not in row:
            raise BadRow("no `hash_ids` in the row")
        ids, _ = structured(row["hash_ids"])
        if not isinstance(ids, list) or not all(type(one) is int and one in INT64 for one in ids):
            raise BadRow("hash_ids is not a list of integers")
        tokens = count_or_none(row.get("input_length"))
        if tokens is None:
            raise BadRow("input_length is not a count")
        size = self.dialect.block_size
        session = self.session(row.get("chat_id"), row.get("parent_chat_id")) or session_of(row)
        blocks = np.array(ids, dtype=np.int64)
        if self.dialect.deltas and session is not None:
            earlier = self._earlier.get(session)
            if earlier is not None:
                blocks = np.concatenate([earlier, blocks])
                tokens = tokens if -(-tokens // size) == len(blocks) else len(earlier) * size + tokens
            self._earlier[session] = blocks
        if not tokens // size <= len(blocks) <= -(-tokens // size):
            raise BadRow("hash_ids does not fit input_length")
        yield Request(
            id=named(row, ("request_id", "id", "chat_id")) or f"{source.file}:{source.row}",
            source=source,
            arrival=microseconds(row.get("timestamp"), self.dialect.unit),
            session=session,
            tenant=tenant_of(row),
            model=named(row, ("model",)),
            block_ids=BlockIds(blocks, size, tokens),
            output_tokens=count_or_none(row.get("output_length")),
        )

    def session(self, chat: Any, parent: Any) -> str | None:
        """The first chat of the chain that `chat` continues; None without chat ids."""
        if type(chat) is not int:
            return None
        root = self._roots.get(parent, parent) if type(parent) is int and parent >= 0 else chat
        self._roots[chat] = root
        return str(root)


def dialect_of(head: Sequence[dict[str, Any]]) -> Dialect:
    """Block size, unit of time and deltas, from rows that claim to be a trace's."""
    shapes = [
        (len(structured(row["hash_ids"])[0]), count_or_none(row["input_length"])) for row in _openings(head)
    ]
    fits = {
        size: sum(tokens is not None and count == -(-tokens // size) for count, tokens in shapes)
        for size in BLOCK_SIZES
    }
    given = next((row["block_size"] for row in head if type(row.get("block_size")) is int), 0)
    size = given if given > 0 else max(BLOCK_SIZES, key=lambda one: fits[one])
    times = [row.get("timestamp") for row in head]
    numbers = [time for time in times if isinstance(time, int | float) and not isinstance(time, bool)]
    unit: str | None = "ms"
    if any(abs(number) >= 1e11 for number in numbers):
        unit = None  # an epoch time tells its own unit
    elif any("chat_id" in row for row in head) or any(number % 1 for number in numbers):
        unit = "s"
    return replace(Dialect(size, unit), deltas=_are_deltas(head, size))


def _openings(head: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first row of each session, and every row that has none: their ids are whole in any dialect."""
    seen: set[str] = set()
    rows = []
    for row in head:
        session = session_of({**row, "chat_id": None})
        if session is None or session not in seen:
            rows.append(row)
        if session is not None:
            seen.add(session)
    return rows


def _are_deltas(head: Sequence[dict[str, Any]], size: int) -> bool:
    """Whether later turns of a session hold only their new blocks.

    They then do not begin as the turn before did, and their lengths do not grow; or they are as long as
    all of the session's blocks. A prompt whose head changes every turn (a clock) does not begin alike
    either, but grows, and so do its own blocks.
    """
    last: dict[str, tuple[int, int]] = {}
    blocks: dict[str, int] = {}
    later = fresh = shorter = added = 0
    for row in head:
        session = session_of({**row, "chat_id": None})
        ids, tokens = structured(row["hash_ids"])[0], count_or_none(row["input_length"])
        if session is None or not ids or tokens is None or type(ids[0]) is not int:
            continue
        if session in last:
            later += 1
            fresh += last[session][0] != ids[0]
            shorter += tokens < last[session][1]
            added += -(-tokens // size) == blocks[session] + len(ids)
        last[session] = (ids[0], tokens)
        blocks[session] = blocks.get(session, 0) + len(ids)
    return later > 0 and fresh >= 0.9 * later and (shorter >= 0.25 * later or added >= 0.9 * later)


FORMAT = BlockHashes
