"""Blocks from the staging area to a GPU, while others are read and the GPU computes.

Readers fill pieces of the area and prove what is in them. Raw blocks for raw slots are read from there by
the device, layer by layer. All others cross in one copy a piece and become numbers when that is over.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor

from kvtool.cache.tiers import Move
from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.arrivals import Event
from kvtool.engine.storage.coded import Encoded, Sent, place_blocks
from kvtool.engine.storage.host import HostBlocks
from kvtool.engine.storage.lanes import Lanes, use_here
from kvtool.engine.storage.layout import BlockShape
from kvtool.engine.storage.lifting import lift_layers
from kvtool.engine.storage.reading import BlockReading, State
from kvtool.engine.storage.runs import Run
from kvtool.engine.storage.staging import StagingArea


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """A proven block whose bytes begin at `at` of the area's memory."""

    place: int
    block: Encoded
    at: int

    @property
    def end(self) -> int:
        """Where they end."""
        return self.at + len(self.block.data)


@dataclass(frozen=True, slots=True, eq=False)
class Crossing:
    """Blocks that cross in one copy of the area's memory from `first` on: `there`, once `event` is over."""

    blocks: Sequence[Staged]
    first: int
    event: Event
    there: list[Tensor]


class StagedReading(BlockReading):
    """Readers fill pieces of `area`; the scheduler's thread sends them on whenever it looks (`done`)."""

    def __init__(
        self,
        device: Arena,
        host: HostBlocks | None,
        loads: Sequence[Move],
        shape: BlockShape,
        area: StagingArea,
        lanes: Lanes,
    ) -> None:
        super().__init__(device, host, loads)
        self._shape = shape
        self._area = area
        self._lanes = lanes
        self._slots_free = lanes.mark()
        """Behind this nobody else uses the slots."""
        self._came: list[tuple[int, list[Staged], list[int]]] = []
        self._coming = Lock()
        self._crossing: list[Crossing] = []

    def take_in(self, run: Run) -> None:
        """Fill a piece; it is given back here if nobody waits for it any more."""
        piece = self._area.take(lambda: self._over)
        if piece is None:
            return
        kept = False
        try:
            good, bad = [], []
            memory = self._area.bytes_of(piece)
            for wanted, found in run.read(memory):
                if found is None:
                    bad.append(wanted.place)
                else:
                    at = torch.frombuffer(found.data, dtype=torch.uint8).data_ptr()
                    good.append(Staged(wanted.place, found, at - self._area.memory.data_ptr()))
            with self._coming:
                if not self._over:
                    self._came.append((piece, good, bad))
                    kept = True
        finally:
            if not kept:
                self._area.give_back(piece)

    def done(self) -> bool:
        """Whether nothing more will come. Sends on what has come since."""
        over = super().done()  # before: what these tasks read is among what has come
        with self._coming:
            came, self._came = self._came, []
        for piece, good, bad in came:
            self._send(piece, good)
            for block in good:
                self.states[block.place] = State.HERE
            for place in bad:
                self.states[place] = State.BAD
        landed = [each for each in self._crossing if each.event.query()]
        self._crossing = [each for each in self._crossing if each not in landed]
        for each in landed:
            self._land(each, len(self._loads))
        return over

    def place(self, count: int) -> None:
        """The device waits for copies that are not over; the host does not."""
        with self._coming:
            super().place(count)
            came, self._came = self._came, []
        for piece, _, _ in came:
            self._area.give_back(piece)
        self._area.look()
        for each in self._crossing:
            self._land(each, count)
        self._crossing = []

    def _send(self, piece: int, blocks: Sequence[Staged]) -> None:
        """Queue the way of a piece's blocks; the piece is free when they have left it."""
        compressed = [block for block in blocks if block.block.codec.compressed]
        raw = [block for block in blocks if self._is_lifted(block)]
        rest = [block for block in blocks if block not in [*compressed, *raw]]
        events = []
        if raw:
            events.append(self._lift(raw))
        if rest:
            self._crossing.append(self._cross(rest))
            events.append(self._crossing[-1].event)
        if compressed:  # the host's work, and over when this returns
            place_blocks(self._device, self._shape, self._slots(compressed), [b.block for b in compressed])
        self._area.give_back(piece, events)

    def _slots(self, blocks: Sequence[Staged]) -> list[int]:
        return [self._loads[block.place].target_slot for block in blocks]

    def _is_lifted(self, staged: Staged) -> bool:
        """Whether the device can take it as it lies there."""
        raw = staged.block.codec.name == "raw" and self._device.in_place
        return raw and staged.at % self._device.dtype.itemsize == 0

    def _lift(self, blocks: Sequence[Staged]) -> Event:
        """Layer by layer; rows of the area's memory begin at every element."""
        memory = self._area.memory.view(self._device.dtype)
        elements = self._shape.elements
        rows = memory.as_strided((len(memory) - elements + 1, elements), (1, 1))
        sources = [block.at // self._device.dtype.itemsize for block in blocks]
        after = [self._slots_free]
        targets = self._slots(blocks)
        return lift_layers(self._device, self._shape, rows, sources, targets, self._lanes, after)[-1]

    def _cross(self, blocks: Sequence[Staged]) -> Crossing:
        """One copy of all bytes from the first block to the last."""
        first, last = min(block.at for block in blocks), max(block.end for block in blocks)
        there: list[Tensor] = []

        def copy() -> None:
            there.append(self._area.memory[first:last].to(self._device.device, non_blocking=True, copy=True))

        return Crossing(blocks, first, self._lanes.back.run(copy), there)

    def _land(self, crossing: Crossing, count: int) -> None:
        """Of a crossing's blocks those among the first `count` become numbers in their slots."""
        blocks = [block for block in crossing.blocks if block.place < count]
        if not blocks:
            return
        crossing.event.wait()
        (there,) = crossing.there
        use_here(there)
        sent = []
        for block in blocks:
            data = there[block.at - crossing.first : block.end - crossing.first]
            sent.append(Sent(block.block.codec, data, block.block.first))
        place_blocks(self._device, self._shape, self._slots(blocks), sent)
