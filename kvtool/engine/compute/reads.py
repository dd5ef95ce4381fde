"""Which keys each row of a packed batch reads, and how: planned once a step, executed by every layer.

Attention over disjoint sets of keys can be computed separately and merged by the log of the softmax
sums, so a row's keys need not lie together. A sequence's history is cut into runs of consecutive
slots, read in place, and a rest that is gathered; what several sequences share is read once for all
of them; a prefill chunk attends to itself straight from its fresh keys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import torch
from torch import Tensor

MIN_RUN = 16
"""Blocks of a run that is worth a pass of its own; shorter ones are gathered."""

MIN_SHARED = 4
"""Blocks that sequences must share before they are read together."""

CAUSAL = 128
"""Rows of a chunk that are read causally at once: the flash kernel computes much of the hidden half too."""

Rows = slice | Tensor
"""Rows of the packed batch: a slice, or int64 [n]."""


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's part of a packed batch: rows [first, last), whose first token has position `start`.

    `slots` is its block table, which covers positions [0, start + last - first).
    """

    first: int
    last: int
    start: int
    slots: Sequence[int]

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + self.last - self.first


@dataclass(frozen=True, slots=True)
class Keys:
    """Tokens of the arena: [first, last) in place, or of the blocks `gather` int64 [n] put together."""

    first: int
    last: int
    gather: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """`rows` read `keys`: all of them, or what `mask` [rows, keys] (0 or -inf, added to the scores) shows.

    A slice as keys are rows of the batch, whose fresh keys are read, causally if they are the reading
    rows. `opens` marks the part that comes first for its rows; the others are merged into it.
    """

    rows: Rows
    keys: Keys | slice
    opens: bool
    mask: Tensor | None = None

    def __len__(self) -> int:
        """Number of rows."""
        return self.rows.stop - self.rows.start if isinstance(self.rows, slice) else len(self.rows)

    @property
    def causal(self) -> bool:
        """Whether row i of the part sees its keys up to key i."""
        return isinstance(self.keys, slice) and self.keys == self.rows


@dataclass
class ReadPlan:
    """The reads of a packed batch, for every window size that the model's layers have."""

    spans: Sequence[Span]
    block_size: int
    device: torch.device
    dtype: torch.dtype
    _parts: dict[int | None, list[Part]] = field(default_factory=dict)

    def parts(self, window: int | None) -> list[Part]:
        """Parts for layers of one window. The ones that open come first and cover every row once."""
        if window is not None and all(span.end <= window for span in self.spans):
            window = None
        if window not in self._parts:
            self._parts[window] = self._plan(window)
        return self._parts[window]

    def _plan(self, window: int | None) -> list[Part]:
        whole = [span for span in self.spans if window is None or span.end <= window]
        shared: dict[int, int] = {span.first: 0 for span in whole}
        together: list[Part] = []
        for group, low, high in common_blocks(whole, self.block_size):
            together.extend(self._together(group, low, high))
            shared.update((span.first, high) for span in group)
        opening: list[Part] = []
        merged: list[Part] = []
        for span in self.spans:
            if span.first in shared:
                parts = self._whole(span, shared[span.first])
            else:
                assert window is not None
                parts = self._windowed(span, window)
            opening.extend(part for part in parts if part.opens)
            merged.extend(part for part in parts if not part.opens)
        return opening + merged + together

    def _together(self, group: Sequence[Span], low: int, high: int) -> list[Part]:
        """Reads of blocks [low, high), which all spans of a group have in common."""
        rows = torch.cat([torch.arange(span.first, span.last) for span in group]).to(self.device)
        runs = self._runs(group[0].slots, low * self.block_size, high * self.block_size)
        return [Part(rows, keys, opens=False) for keys in runs]

    def _whole(self, span: Span, shared: int) -> list[Part]:
        """Reads of a span that sees its whole history, of which `shared` blocks are read elsewhere."""
        rows = slice(span.first, span.last)
        if span.last - span.first == 1:
            reads = self._runs(span.slots, shared * self.block_size, span.end)
            return [Part(rows, keys, opens=number == 0) for number, keys in enumerate(reads)]
        parts = []
        for first in range(span.first, span.last, CAUSAL):
            some = slice(first, min(first + CAUSAL, span.last))
            parts.append(Part(some, some, opens=True))
            if first > span.first:
                parts.append(Part(some, slice(span.first, first), opens=False))
        earlier = self._runs(span.slots, shared * self.block_size, span.start)
        return parts + [Part(rows, keys, opens=False) for keys in earlier]

    def _windowed(self, span: Span, window: int) -> list[Part]:
        """Reads of a span that does not see all of its history."""
        rows = slice(span.first, span.last)
        low = max(span.start + 1 - window, 0)
        if span.last - span.first == 1:
            reads = self._runs(span.slots, low, span.end)
            return [Part(rows, keys, opens=number == 0) for number, keys in enumerate(reads)]
        # One read in order of positions: with the mask over all of a row's keys no row is empty.
        queries = torch.arange(span.start, span.end, device=self.device)[:, None]
        positions = torch.arange(low, span.end, device=self.device)[None]
        hidden = (positions > queries) | (positions <= queries - window)
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
        mask.masked_fill_(hidden, -torch.inf)
        return [Part(rows, self._ordered(span.slots, low, span.end), opens=True, mask=mask)]

    def _ordered(self, slots: Sequence[int], low: int, high: int) -> Keys:
        """Positions [low, high) of a block table as one read in their order."""
        size = self.block_size
        blocks = slots[low // size : -(-high // size)]
        offset = low // size * size
        if blocks[-1] - blocks[0] == len(blocks) - 1 and all(
            right == left + 1 for left, right in pairwise(blocks)
        ):
            base = blocks[0] * size - offset
            return Keys(base + low, base + high)
        return Keys(low - offset, high - offset, torch.tensor(blocks, device=self.device))

    def _runs(self, slots: Sequence[int], low: int, high: int) -> list[Keys]:
        """Positions [low, high) as reads in any order: long runs in place, the rest gathered."""
        size = self.block_size
        first, last = low // size, -(-high // size)
        if first >= last:
            return []
        reads: list[Keys] = []
        rest: list[tuple[int, int]] = []
        begin = first
        for block in range(first + 1, last + 1):
            if block == last or slots[block] != slots[block - 1] + 1:
                if block - begin >= MIN_RUN:
                    base = (slots[begin] - begin) * size
                    reads.append(Keys(base + max(begin * size, low), base + min(block * size, high)))
                else:
                    rest.append((begin, block))
                begin = block
        if not rest:
            return reads
        # The rest keeps its order, so only its first block can lack a head and only its last one a tail.
        blocks = [slot for left, right in rest for slot in slots[left:right]]
        head = max(low - rest[0][0] * size, 0)
        tail = max(rest[-1][1] * size - high, 0)
        if len(rest) == 1:
            return [*reads, Keys(blocks[0] * size + head, (blocks[-1] + 1) * size - tail)]
        return [*reads, Keys(head, len(blocks) * size - tail, torch.tensor(blocks, device=self.device))]


def common_blocks(
    spans: Sequence[Span], block_size: int, depth: int = 0
) -> Iterator[tuple[list[Span], int, int]]:
    """Blocks [low, high) from `depth` on that two or more spans have in common, outer ones first.

    Only full blocks before a span's first row are shared, so all of its rows see all of them.
    """
    able = [span for span in spans if span.start // block_size > depth]
    able.sort(key=lambda span: span.slots[depth])
    for _, same in groupby(able, key=lambda span: span.slots[depth]):
        group = sorted(same, key=lambda span: span.first)
        if len(group) < 2:
            continue
        high = min(span.start // block_size for span in group)
        for span in group[1:]:
            high = _agree(group[0].slots, span.slots, depth, high)
        if high - depth >= MIN_SHARED:
            yield group, depth, high
            yield from common_blocks(group, block_size, high)


def _agree(left: Sequence[int], right: Sequence[int], depth: int, limit: int) -> int:
    """First block from `depth` on, at most `limit`, in which two tables differ."""
    for block in range(depth, limit):
        if left[block] != right[block]:
            return block
    return limit
