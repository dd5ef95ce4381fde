"""Blocks on their way up: read by threads, taken in by the scheduler's, given up at any time.

On a CPU each reader writes its block to the device's slot itself, while it is in the processor's cache; where
there is a GPU blocks come by way of a staging area (`landing.py`).
"""

import logging
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from enum import Enum
from threading import Lock

from kvtool.cache.tiers import Move
from kvtool.engine.compute.arena import Arena
from kvtool.engine.storage.coded import Encoded
from kvtool.engine.storage.host import HostBlocks
from kvtool.engine.storage.layout import BlockShape
from kvtool.engine.storage.memory import Staging, fresh
from kvtool.engine.storage.runs import Run

log = logging.getLogger("kvtool.serve")


class State(Enum):
    """Of a block on its way."""

    COMING = 0
    HERE = 1
    BAD = 2


class BlockReading:
    """Blocks on their way to slots that nobody else uses before the reading is over.

    Used by the scheduler's thread, but for `take_in`. Blocks arrive in any order, those in host memory at
    once.
    """

    def __init__(self, device: Arena, host: HostBlocks | None, loads: Sequence[Move]) -> None:
        self.states = [State.COMING] * len(loads)
        self._device = device
        self._host = host
        self._loads = loads
        self._tasks: list[Future[None]] = []
        self._over = False

    def begin(self, readers: Executor, runs: Sequence[Run]) -> None:
        """Read `runs`, and bring what no run has from host memory."""
        self._tasks = [readers.submit(self.take_in, run) for run in runs]
        below = {block.place for run in runs for block in run.blocks}
        above = [place for place in range(len(self._loads)) if place not in below]
        if not above:
            return
        assert self._host is not None
        for place in above:
            held = self._host.holds(self._loads[place].source_slot)
            self.states[place] = State.HERE if held else State.BAD
        moves = [self._loads[place] for place in above if self.states[place] is State.HERE]
        if moves:
            sources, targets = [move.source_slot for move in moves], [move.target_slot for move in moves]
            self._host.bring(self._device, sources, targets)

    def take_in(self, run: Run) -> None:
        """A reader's work. What is read when the reading is over is dropped: slots may be others' by then."""
        raise NotImplementedError

    def arrived(self) -> int:
        """Leading blocks that are here and whole."""
        return _leading(self.states)

    def failed(self) -> list[int]:
        """Places of the blocks that proved bad."""
        return _bad(self.states)

    def done(self) -> bool:
        """Whether nothing more will come."""
        left = [task for task in self._tasks if not task.done()]
        for task in self._tasks:
            if task.done():
                task.result()  # what no reader expects is the engine's end
        self._tasks = left
        return not left

    def place(self, count: int) -> None:
        """The end: the first `count` blocks, all arrived, are in their slots; none is written later."""
        for task in self._tasks:
            task.cancel()
        self._over = True


class InPlaceReading(BlockReading):
    """Readers decode and write. For an arena of raw blocks in the CPU's memory."""

    def __init__(
        self,
        device: Arena,
        host: HostBlocks | None,
        loads: Sequence[Move],
        shape: BlockShape,
        buffers: Staging,
    ) -> None:
        super().__init__(device, host, loads)
        self._shape = shape
        self._buffers = buffers
        self._writing = Lock()

    def take_in(self, run: Run) -> None:
        """Into the thread's own buffer, which is in the processor's cache, and from there to the slots."""
        for wanted, found in run.read(self._buffers.take(run.size)):
            if found is None:
                self.states[wanted.place] = State.BAD
                continue
            slot = self._loads[wanted.place].target_slot
            block = None if found.raw else found.decode(self._shape)
            with self._writing:
                if self._over:
                    return
                if block is None:
                    self._device.put_bytes(slot, found.data)
                else:
                    self._device.write_block(slot, block)
            self.states[wanted.place] = State.HERE

    def place(self, count: int) -> None:
        """They are there."""
        with self._writing:
            super().place(count)


class BlockLift:
    """Blocks on their way from disk to the host tier. Used by the scheduler's thread, but for `_read`."""

    def __init__(
        self, host: HostBlocks, moves: Sequence[Move], readers: Executor, runs: Sequence[Run]
    ) -> None:
        self._host = host
        self._moves = list(moves)  # the pool takes from its own what has landed
        self._states = [State.COMING] * len(moves)
        self._found: dict[int, Encoded] = {}
        self._warned = False
        self._tasks = [readers.submit(self._read, run) for run in runs]

    def arrived(self) -> int:
        """Leading blocks that are here and whole."""
        return _leading(self._states)

    def failed(self) -> list[int]:
        """Places of the blocks that proved bad."""
        return _bad(self._states)

    def place(self, first: int, last: int) -> None:
        """Write blocks [first, last), all arrived, into their host slots."""
        for place in range(first, last):
            self._host.put(self._moves[place].target_slot, self._found.pop(place))

    def cancel(self) -> None:
        """Read no more than what has begun."""
        for task in self._tasks:
            task.cancel()

    def _read(self, run: Run) -> None:
        try:
            for wanted, found in run.read(fresh(run.size)):
                if found is not None:
                    self._found[wanted.place] = found
                self._states[wanted.place] = State.BAD if found is None else State.HERE
        except Exception as error:  # nobody looks at the task: what does not come must be seen as bad
            if not self._warned:
                self._warned = True
                log.warning("blocks could not be read ahead and are computed: %r", error, exc_info=True)
            for wanted in run.blocks:
                if self._states[wanted.place] is State.COMING:
                    self._states[wanted.place] = State.BAD


def _leading(states: Sequence[State]) -> int:
    return next((place for place, state in enumerate(states) if state is not State.HERE), len(states))


def _bad(states: Sequence[State]) -> list[int]:
    return [place for place, state in enumerate(states) if state is State.BAD]
