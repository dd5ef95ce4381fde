"""Loads on their way: blocks are read beside the forward, and given up when computing would be faster."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvtool.blocks import BlockHash
from kvtool.cache.tiers import Move, Tier, TieredLease, TieredPool
from kvtool.engine.serving.generation import Generation
from kvtool.engine.serving.rates import Rates


class Reading(Protocol):
    """Some blocks being read from lower tiers."""

    def arrived(self) -> int:
        """Leading blocks that are here and whole."""
        ...

    def failed(self) -> list[int]:
        """Places of the blocks that proved bad."""
        ...

    def done(self) -> bool:
        """Whether nothing more will come."""
        ...

    def place(self, count: int) -> None:
        """The end: the first `count` blocks, all arrived, are in their slots; none is written later."""
        ...


class Lift(Protocol):
    """Some blocks being read into the host tier, for nobody who waits yet."""

    def arrived(self) -> int:
        """As of a `Reading`."""
        ...

    def failed(self) -> list[int]:
        """As of a `Reading`."""
        ...

    def place(self, first: int, last: int) -> None:
        """Write blocks [first, last), all arrived, into their host slots."""
        ...

    def cancel(self) -> None:
        """Read no more than what has begun."""
        ...


class Store(Protocol):
    """Copies blocks between tiers."""

    def execute(self, moves: Sequence[Move]) -> list[Move]:
        """Copy down, in order; returns the moves that failed by now, earlier ones too."""
        ...

    def read(self, loads: Sequence[Move]) -> Reading:
        """Begin to read; the caller polls."""
        ...

    def lift(self, moves: Sequence[Move]) -> Lift:
        """Begin to read blocks for the host tier, behind what `read` was asked for."""
        ...

    def chain_to(self, block: BlockHash) -> list[int]:
        """Nodes of the chain that ends with a block, empty if neither index nor shards know it."""
        ...


@dataclass(slots=True, eq=False)
class Load:
    """A lease whose loads are under way; `request` is None for a prefetch."""

    lease: TieredLease
    reading: Reading
    tiers: list[Tier]
    begun: float
    deadline: float
    request: Generation | None


class Loads:
    """All loads of a scheduler."""

    def __init__(self, pool: TieredPool, store: Store, rates: Rates, counts: Counter[str]) -> None:
        self._pool = pool
        self._store = store
        self._rates = rates
        self._counts = counts
        self._loads: list[Load] = []

    def __len__(self) -> int:
        return len(self._loads)

    def nodes(self) -> list[int]:
        """Blocks that are on their way: whoever needs one waits for it."""
        return [move.node for load in self._loads for move in load.lease.loads]

    def begin(self, lease: TieredLease, now: float, request: Generation | None) -> None:
        """Start reading `lease.loads`; the pool's moves have been executed."""
        reading = self._store.read(lease.loads)
        tiers = [move.source for move in lease.loads]
        deadline = now + self._rates.patience(len(tiers))
        self._loads.append(Load(lease, reading, tiers, now, deadline, request))

    def poll(self, now: float) -> list[Load]:
        """Settle loads that are complete or late; what did not arrive, or is bad, is to be computed."""
        settled = []
        for load in list(self._loads):
            late = now >= load.deadline
            if not late and not load.reading.done():
                continue
            count, failed = load.reading.arrived(), load.reading.failed()
            # A bad block took as long to read as a good one; what did not come in time did not count.
            read = len(load.tiers) if load.reading.done() else max(count, 1)
            load.reading.place(count)
            moves = load.lease.loads
            self._pool.settle(load.lease, count, bad=False)
            self._loads.remove(load)
            self._rates.loaded(load.tiers[:read], now - load.begun)
            for place in failed:
                self._pool.discard(moves[place].node, moves[place].source)
            self._counts["bad_blocks"] += len(failed)
            self._counts["late_blocks"] += 0 if failed else len(load.tiers) - count
            settled.append(load)
        return settled

    def abandon(self, request: Generation) -> None:
        """The request leaves: its copies below stay, what was read is dropped."""
        for load in list(self._loads):
            if load.request is request:
                load.reading.place(0)
                self._pool.settle(load.lease, 0, bad=False)
                self._loads.remove(load)
