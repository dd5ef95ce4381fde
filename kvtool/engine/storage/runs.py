"""Blocks that lie next to each other in a file are read at once, in order of the file."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvtool.engine.storage.coded import Encoded
from kvtool.engine.storage.direct import PAGE, Came, Readable

GAP = 256 << 10
"""Bytes that are read in vain rather than begin anew: what a fast disk gives in the time of one command."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A block to read: `size` bytes at `offset`. place: of the load that it belongs to.

    prove: makes a block of what came; None if it is not the block's bytes.
    """

    place: int
    file: Readable
    offset: int
    size: int
    prove: Callable[[Came], Encoded | None]

    @property
    def end(self) -> int:
        """Where it ends in the file."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class Run:
    """Blocks of one file, in its order, and the bytes [start, end) that hold them all."""

    blocks: Sequence[Wanted]
    start: int
    end: int

    @property
    def size(self) -> int:
        """Memory that `read` needs."""
        return self.end - self.start

    def read(self, memory: memoryview) -> Iterator[tuple[Wanted, Encoded | None]]:
        """Read all, then prove one block after the other; their bytes are views of `memory`."""
        file = self.blocks[0].file
        came = file.read(memory[: self.size], self.start)
        for block in self.blocks:
            first = block.offset - self.start
            yield block, block.prove(came if isinstance(came, OSError) else came[first : first + block.size])


def alone(wanted: Sequence[Wanted]) -> list[Run]:
    """A run for each block: what is used before the next one is read is still in the processor's cache."""
    return [Run([block], block.offset, block.end) for block in wanted]


def joined(wanted: Sequence[Wanted], most: int) -> list[Run]:
    """Runs of whole pages that take at most `most` bytes or hold one block; first what is needed first."""
    found: list[list[Wanted]] = []
    for block in sorted(wanted, key=lambda block: (str(block.file.path), block.offset)):
        if found:
            run = found[-1]
            near = block.file is run[-1].file and 0 <= block.offset - run[-1].end <= GAP
            if near and _pages(block.end) - _page(run[0].offset) <= most:
                run.append(block)
                continue
        found.append([block])
    found.sort(key=lambda run: min(block.place for block in run))
    return [Run(run, _page(run[0].offset), _pages(run[-1].end)) for run in found]


def _page(offset: int) -> int:
    return offset // PAGE * PAGE


def _pages(end: int) -> int:
    return -(-end // PAGE) * PAGE
