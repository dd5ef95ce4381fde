"""The order in which prewarm computes a plan: pieces of chains, packed into forwards of a fixed shape.

KV values depend in their last bits on the shape of the forward that made them. So the cuts follow
from the plan alone: a piece ends where the trie branches and at absolute positions that are multiples
of `chunk_tokens`. A run that resumes computes the very same pieces.

Pieces that nothing builds upon, the ends of prompts, share a forward with their neighbours: siblings
and cousins read their common history once. A piece that others need is computed alone, so that it comes
out the same when it has to be computed again for them.

Where prompts part inside a block, the tokens before the split stand in the slot already, left there by
the sibling that computed them: a piece starts behind them, and no token is computed twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvtool.analysis.plan import Plan

CHUNK_TOKENS = 512
"""Tokens of one forward at most: enough to fill the matrix units, little memory for activations."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [first, last) of the plan: consecutive blocks of one chain. `parent` is the row above, or -1.

    shared: leading tokens of the first block that earlier siblings computed; owners: the pieces, by
    number, that did. ends: no other piece builds on this one, neither below it nor beside it.
    """

    first: int
    last: int
    parent: int
    shared: int
    owners: tuple[int, ...]
    ends: bool

    def __len__(self) -> int:
        return self.last - self.first


def chunk_tokens(block_size: int) -> int:
    """Tokens of a full piece: CHUNK_TOKENS in whole blocks."""
    return max(CHUNK_TOKENS // block_size, 1) * block_size


def chunking(block_size: int) -> dict[str, object]:
    """What the manifest records about the cuts."""
    return {"cuts": "splits and multiples", "tokens": chunk_tokens(block_size), "packed": "ends"}


def cut_pieces(plan: Plan) -> list[Piece]:
    """All pieces in storage order; every row of the plan is in exactly one."""
    per_piece = chunk_tokens(plan.block_size) // plan.block_size
    parents = plan.parent.tolist()
    depths = plan.depth.tolist()
    children = [0] * (len(parents) + 1)
    for parent in parents:
        children[parent] += 1
    cuts: list[tuple[int, int, int, tuple[int, ...]]] = []
    families = _Families(plan)
    built_upon: set[int] = set()
    first = 0
    for row in range(1, len(parents) + 1):
        goes_on = (
            row < len(parents)
            and parents[row] == row - 1
            and children[row - 1] == 1
            and depths[row] % per_piece != 0
        )
        if not goes_on:
            shared, owners = families.enter(first, len(cuts))
            cuts.append((first, row, shared, owners))
            built_upon.update(owners)
            first = row
    return [
        Piece(first, last, parents[first], shared, owners, children[last - 1] == 0 and at not in built_upon)
        for at, (first, last, shared, owners) in enumerate(cuts)
    ]


class _Families:
    """For each parent: the block last seen below it, and which piece computed each of its tokens."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.last: dict[tuple[int, int], tuple[int, list[int]]] = {}

    def enter(self, row: int, piece: int) -> tuple[int, tuple[int, ...]]:
        """(tokens shared with the sibling before, pieces that own them) of a piece's first row."""
        family = (int(self.plan.parent[row]), int(self.plan.tenant[row]))
        shared, owners = 0, [piece] * self.plan.block_size
        if family in self.last:
            sibling, theirs = self.last[family]
            differs = self.plan.tokens[row] != self.plan.tokens[sibling]
            shared = int(differs.argmax())
            owners[:shared] = theirs[:shared]
        self.last[family] = (row, owners)
        return shared, tuple(dict.fromkeys(owners[:shared]))


@dataclass(frozen=True, slots=True)
class Batch:
    """The forwards for one shard file, in order: of what it stores, and of ancestors that this builds on.

    A forward is one piece, or several that end prompts and hold `chunk_tokens` together at most.
    """

    forwards: list[tuple[Piece, ...]]
    stored: list[int]  # rows of the plan that the file will hold, in order


def batches(plan: Plan, pieces: Sequence[Piece], missing: Callable[[int], bool], limit: int) -> list[Batch]:
    """Pack the missing rows into files of about `limit` bytes; a piece is never split over two files.

    Packing looks at nothing but the missing rows from each file's first on, so a run that resumes after
    whole files packs the rest as the first run would have.
    """
    wanted = [[row for row in range(piece.first, piece.last) if missing(row)] for piece in pieces]
    needed = _needed(pieces, [bool(rows) for rows in wanted])
    packed: list[Batch] = []
    visit: list[Piece] = []
    stored: list[int] = []
    size = 0
    for piece, rows, need in zip(pieces, wanted, needed, strict=True):
        added = int(plan.bytes[rows].sum())
        if rows and stored and size + added > limit:
            packed.append(Batch(_forwards(visit, plan.block_size), stored))
            visit, stored, size = [], [], 0
        if need:
            visit.append(piece)
            stored.extend(rows)
            size += added
    if stored:
        packed.append(Batch(_forwards(visit, plan.block_size), stored))
    return packed


def split(pieces: Sequence[Piece], work: Sequence[Batch], devices: int, block_size: int) -> list[list[Batch]]:
    """The files dealt out to devices in turn, each with all that its own files build on.

    What two devices build on is computed by both. Blocks come out as with one device: a piece that others
    need is alone in its forward, and ends of prompts share theirs only within a file.
    """
    shares = []
    for device in range(devices):
        own = work[device::devices]
        place = {row: at for at, batch in enumerate(own) for row in batch.stored}
        files = [
            next((place[row] for row in range(piece.first, piece.last) if row in place), None)
            for piece in pieces
        ]
        needed = _needed(pieces, [file is not None for file in files])
        visits: list[list[Piece]] = [[] for _ in own]
        waiting: list[Piece] = []
        for piece, file, need in zip(pieces, files, needed, strict=True):
            if need:
                waiting.append(piece)
            if file is not None:
                visits[file].extend(waiting)
                waiting = []
        shares.append(
            [
                Batch(_forwards(visit, block_size), batch.stored)
                for visit, batch in zip(visits, own, strict=True)
            ]
        )
    return shares


def _forwards(pieces: Sequence[Piece], block_size: int) -> list[tuple[Piece, ...]]:
    """Neighbours that end prompts together, as many as fit; all others alone."""
    room = chunk_tokens(block_size) // block_size
    found: list[tuple[Piece, ...]] = []
    for piece in pieces:
        last = found[-1] if found else ()
        if piece.ends and last and last[-1].ends and sum(map(len, last)) + len(piece) <= room:
            found[-1] = (*last, piece)
        else:
            found.append((piece,))
    return found


def _needed(pieces: Sequence[Piece], wanted: list[bool]) -> list[bool]:
    """A piece is visited if something in it or below it is wanted, or tokens that it owns are shared.

    Parents and owners come before those that need them.
    """
    needed = list(wanted)
    holder = {row: number for number, piece in enumerate(pieces) for row in range(piece.first, piece.last)}
    for number in range(len(pieces) - 1, -1, -1):
        if needed[number]:
            for owner in pieces[number].owners:
                needed[owner] = True
            if pieces[number].parent >= 0:
                needed[holder[pieces[number].parent]] = True
    return needed
