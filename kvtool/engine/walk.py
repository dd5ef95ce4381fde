"""The walk over a plan's trie: an arena that holds the current path, and every block as it is computed.

The block at depth d of the current path is in slot d, a branch overwrites its sibling from where they
part, parents are shared by staying where they are: block tables name them. Ends of prompts that share
a forward stand in slots at the side, which the next forward overwrites. So memory is one path and one
forward, whatever the trie's size.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from kvtool.analysis.plan import Plan
from kvtool.engine.compute.arena import Arena, Block, Blocks
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.runner import Chunk, Runner
from kvtool.engine.schedule import Batch, Piece, chunk_tokens


class Walk:
    """Visits forwards in their order. `exact(row)` is a stored block to the last bit, None if there is none.

    computed: tokens of new blocks, each once; again: of blocks that were stored but had to be computed
    for those that build on them; loaded: the same, but read back.
    """

    def __init__(self, plan: Plan, model: Model, exact: Callable[[int], Block | None]) -> None:
        self._plan = plan
        self._exact = exact
        self._side = int(plan.depth.max()) + 1
        slots = self._side + chunk_tokens(plan.block_size) // plan.block_size
        self._arena = Arena(model, slots, plan.block_size)
        self._runner = Runner(model, self._arena)
        self.computed = self.again = self.loaded = 0

    def blocks(self, batches: Sequence[Batch]) -> Iterator[tuple[list[int], Blocks]]:
        """(rows, blocks) of everything the batches store, in order, a forward's blocks together."""
        for batch in batches:
            stored = set(batch.stored)
            for pieces in batch.forwards:
                places = self._places(pieces)
                if not self._load(pieces, stored):
                    self._compute(pieces, places, stored)
                made = [
                    (row, slot)
                    for piece, slots in zip(pieces, places, strict=True)
                    for row, slot in zip(range(piece.first, piece.last), slots, strict=True)
                    if row in stored
                ]
                if made:
                    yield [row for row, _ in made], self._arena.read_blocks([slot for _, slot in made])

    def _places(self, pieces: Sequence[Piece]) -> list[range]:
        """The slots of each piece's own blocks."""
        found = []
        side = self._side
        for piece in pieces:
            first = int(self._plan.depth[piece.first])
            if piece.ends:
                first, side = side, side + len(piece)
            found.append(range(first, first + len(piece)))
        return found

    def _load(self, pieces: Sequence[Piece], stored: set[int]) -> bool:
        """Whether a piece that is only built upon could be read back as it was."""
        (first, *others) = pieces
        rows = range(first.first, first.last)
        if others or not stored.isdisjoint(rows):
            return False
        for row in rows:
            block = self._exact(row)
            if block is None:
                return False
            self._arena.write_block(int(self._plan.depth[row]), block)
        self.loaded += len(first) * self._plan.block_size
        return True

    def _compute(self, pieces: Sequence[Piece], places: Sequence[range], stored: set[int]) -> None:
        """One forward for all of `pieces`."""
        size = self._plan.block_size
        chunks = []
        for piece, slots in zip(pieces, places, strict=True):
            depth = int(self._plan.depth[piece.first])
            if piece.ends and piece.shared:  # what siblings computed of the first block
                self._arena.copy_from(self._arena, [depth], [slots[0]])
            tokens = np.ravel(self._plan.tokens[piece.first : piece.last])[piece.shared :]
            chunks.append(Chunk(tokens, depth * size + piece.shared, [*range(depth), *slots]))
            new = sum(row in stored for row in range(piece.first, piece.last))
            fresh = new * size - (piece.shared if piece.first in stored else 0)
            self.computed += fresh
            self.again += len(tokens) - fresh
        self._runner.step(chunks)
