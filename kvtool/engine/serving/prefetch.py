"""Blocks brought up to the host tier before they are needed: for requests that wait, and for those foreseen.

What was fetched is held until whoever it was fetched for is here, or is not expected any more. Reads for
requests that already wait for a block go first: the store reads ahead in threads of its own.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from kvtool.cache.tiers import Staging, Tier, TieredPool
from kvtool.engine.serving.loading import Lift, Store
from kvtool.engine.serving.rates import Rates

Why = Literal["arrival", "foreseen", "asked"]
"""A request waits for its turn; a session is expected to go on; the admin said so."""

WHYS: tuple[Why, ...] = ("arrival", "foreseen", "asked")

HOST_SHARE = 0.5
"""Most of the host tier that prefetched blocks may hold: they must not push out what is known to be used."""


@dataclass(slots=True)
class _Fetch:
    why: Why
    nodes: list[int]
    staging: Staging
    lift: Lift
    deadline: float
    until: float
    landed: int = 0


class Prefetch:
    """Fetches by the key of whoever they are for. `counts` gets prefetched_, prefetch_used_ and
    prefetch_wasted_ blocks by reason."""

    def __init__(
        self,
        pool: TieredPool,
        store: Store,
        rates: Rates,
        counts: Counter[str],
        execute_moves: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._store = store
        self._rates = rates
        self._counts = counts
        self._execute_moves = execute_moves
        self._fetches: dict[Hashable, _Fetch] = {}
        self._unused: dict[int, Why] = {}
        host = pool.lower.get(Tier.HOST)
        self._most = 0 if host is None else max(int(host.capacity * HOST_SHARE), 1)

    @property
    def able(self) -> bool:
        """Whether there is a host tier to fetch into."""
        return self._most > 0

    def __len__(self) -> int:
        return len(self._fetches)

    def coming(self) -> list[int]:
        """Blocks that are on their way."""
        return [move.node for fetch in self._fetches.values() for move in fetch.staging.moves]

    def nodes(self) -> Iterable[int]:
        """All blocks that fetches refer to."""
        return [node for fetch in self._fetches.values() for node in fetch.nodes]

    def begin(self, key: Hashable, nodes: Sequence[int], why: Why, now: float, until: float) -> int:
        """Fetch those of `nodes` that are below the host tier, and hold all until `until`. Returns how many.

        A fetch under the same key ends.
        """
        self.end(key)
        room = self._most - sum(
            len(fetch.staging.held) + len(fetch.staging.moves) for fetch in self._fetches.values()
        )
        staging = self._pool.stage(list(nodes), max(room, 0))
        self._execute_moves()
        if not staging.moves and not staging.held:
            return 0
        deadline = now + self._rates.patience(len(staging.moves))
        self._fetches[key] = _Fetch(
            why, list(nodes), staging, self._store.lift(staging.moves), deadline, until
        )
        return len(staging.moves)

    def poll(self, now: float) -> None:
        """Take in what has arrived; give up what is late, and who is not expected any more."""
        for key, fetch in list(self._fetches.items()):
            if fetch.staging.moves:
                self._take_in(fetch, now)
            if now >= fetch.until:
                self.end(key)

    def landed(self, nodes: Iterable[int], why: Why) -> None:
        """These blocks are up; from now on they are used or wasted."""
        for node in nodes:
            self._counts[f"prefetched_{why}"] += 1
            self._unused[node] = why

    def used(self, nodes: Iterable[int]) -> None:
        """A request found these blocks in memory."""
        for node in nodes:
            why = self._unused.pop(node, None)
            if why is not None:
                self._counts[f"prefetch_used_{why}"] += 1

    def end(self, key: Hashable) -> None:
        """Whoever it was for is here, or will not come: what he has not used was fetched for nothing."""
        fetch = self._fetches.pop(key, None)
        if fetch is None:
            return
        others = set(self.nodes())
        for node in fetch.nodes:
            if node not in others and self._unused.pop(node, None) is not None:
                self._counts[f"prefetch_wasted_{fetch.why}"] += 1
        fetch.lift.cancel()
        self._pool.abandon(fetch.staging)
        self._pool.unstage(fetch.staging)

    def _take_in(self, fetch: _Fetch, now: float) -> None:
        count, failed = fetch.lift.arrived(), fetch.lift.failed()
        new = fetch.staging.moves[: count - fetch.landed]
        if new:
            fetch.lift.place(fetch.landed, count)
            self._pool.land(fetch.staging, len(new))
            self.landed([move.node for move in new], fetch.why)
            fetch.landed = count
        if fetch.staging.moves and (failed or now >= fetch.deadline):
            fetch.lift.cancel()
            moves = fetch.staging.moves
            self._pool.abandon(fetch.staging)
            for place in failed:
                move = moves[place - fetch.landed]
                self._pool.discard(move.node, move.source)
            self._counts["bad_blocks"] += len(failed)
