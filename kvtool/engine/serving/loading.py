"""Loads on their way: blocks are read beside the forward, and given up when computing would be faster."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvtool.cache.tiers import Move, Tier, TieredLease, TieredPool
from kvtool.engine.serving.generation import Generation
from kvtool.engine.serving.rates import Rates


class Reading(Protocol):
    """Some blocks being read from lower tiers."""

    def arrived(self) -> tuple[int, bool]:
        """(leading blocks that are here, whether the next one proved bad)."""
        ...

    def place(self, count: int) -> None:
        """Write the first `count` blocks, all arrived, into their device slots."""
        ...


class Store(Protocol):
    """Copies blocks between tiers."""

    def execute(self, moves: Sequence[Move]) -> list[Move]:
        """Copy down, in order; returns the moves that failed."""
        ...

    def read(self, loads: Sequence[Move]) -> Reading:
        """Begin to read; the caller polls."""
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
        """Settle loads that are complete, bad or late; what did not arrive is to be computed."""
        settled = []
        for load in list(self._loads):
            count, bad = load.reading.arrived()
            late = now >= load.deadline
            if count < len(load.tiers) and not bad and not late:
                continue
            load.reading.place(count)
            self._pool.settle(load.lease, count, bad=bad)
            self._loads.remove(load)
            self._rates.loaded(load.tiers[: max(count, 1)], now - load.begun)
            self._counts["bad_blocks"] += bad
            self._counts["late_blocks"] += 0 if bad else len(load.tiers) - count
            settled.append(load)
        return settled

    def abandon(self, request: Generation) -> None:
        """The request leaves: its copies below stay, what was read is dropped."""
        for load in list(self._loads):
            if load.request is request:
                self._pool.settle(load.lease, 0, bad=False)
                self._loads.remove(load)
