"""The step that runs: launched over what the scheduler planned, taken in when its tokens are here.

Where the device computes beside the host, a step is launched before the one before is taken in, which then
costs no time: the device has work. An answer that ends with a token is so computed one token too far; that
token is dropped. A choice that is made on the host needs the step's logits before they are overwritten: such
a step is taken in before the next one is planned.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvtool.cache.tiers import TieredLease, TieredPool
from kvtool.engine.compute.logprobs import TokenLogprob
from kvtool.engine.compute.runner import Chunk
from kvtool.engine.serving.choosing import Rules
from kvtool.engine.serving.generation import Generation
from kvtool.engine.serving.rates import Rates
from kvtool.engine.serving.steps import Ask, Step, Steps

Publish = Callable[[Generation], None]
"""Full blocks of a request become hits for others."""

Accept = Callable[[Generation, int, TokenLogprob | None], None]
"""A request's next token, and how likely it was if the request wants to know."""


@dataclass(slots=True, eq=False)
class Flight:
    """A launched step. batch: requests -> how many of their tokens it computes.

    rows: which of the chosen tokens is a request's. released: leases of requests that have left since, whose
    slots the step may still write, with the length of their answers (-1 unknown).
    """

    step: Step
    batch: dict[Generation, int]
    rows: dict[Generation, int]
    begun: float
    released: list[tuple[TieredLease, int]] = field(default_factory=list)


class Flights:
    """At most one step is in the air between two calls. `counts` get steps, computed and dropped tokens."""

    def __init__(
        self,
        steps: Steps,
        pool: TieredPool,
        rates: Rates,
        counts: Counter[str],
        clock: Callable[[], float],
        block_size: int,
        publish: Publish,
        accept: Accept,
    ) -> None:
        self._steps = steps
        self._pool = pool
        self._rates = rates
        self._counts = counts
        self._clock = clock
        self._size = block_size
        self._publish = publish
        self._accept = accept
        self._flight: Flight | None = None
        self._landed = 0.0

    def __bool__(self) -> bool:
        """Whether a step is in the air."""
        return self._flight is not None

    def land_unless_foreseen(self) -> None:
        """Take the step in if the next one cannot be planned without what comes of it."""
        if self._flight is not None and not all(
            isinstance(request.choose, Rules) for request in self._flight.rows
        ):
            self.land()

    def launch(self, batch: Sequence[tuple[Generation, int]]) -> None:
        """Run a step behind the one in the air, then take that one in; nothing is run for an empty batch."""
        before, self._flight = self._flight, (self._begin(batch) if batch else None)
        if before is not None:
            self._take_in(before)
        if self._flight is not None and self._steps.ahead:
            for request in self._flight.batch:
                if request.finish is None:
                    self._publish(request)  # whoever reads these blocks runs after the step that fills them
        else:
            self.land()

    def land(self) -> None:
        """Wait for the step in the air, if there is one, and take it in."""
        flight, self._flight = self._flight, None
        if flight is not None:
            self._take_in(flight)

    def done(self, request: Generation) -> int:
        """Its tokens whose keys and values are in their slots: `computed` but for the step in the air."""
        return request.computed - (0 if self._flight is None else self._flight.batch.get(request, 0))

    def end(self, request: Generation, length: int) -> None:
        """Release a request's lease, when nothing writes to its slots any more."""
        assert request.lease is not None
        if self._flight is not None and request in self._flight.batch:
            self._flight.released.append((request.lease, length))
        else:
            self._pool.release(request.lease, length)

    def abandon(self) -> None:
        """The device is lost: nobody waits for it."""
        flight, self._flight = self._flight, None
        if flight is not None:
            self._release(flight)

    def _begin(self, batch: Sequence[tuple[Generation, int]]) -> Flight:
        chunks = [self._chunk(request, count) for request, count in batch]
        asking = [request for (request, _), chunk in zip(batch, chunks, strict=True) if chunk.want_logits]
        begun = self._clock()
        step = self._steps.launch(chunks, [self._ask(request) for request in asking])
        for request, count in batch:
            request.computed += count
        for request in asking:
            request.pending += 1
        return Flight(step, dict(batch), {request: row for row, request in enumerate(asking)}, begun)

    def _take_in(self, flight: Flight) -> None:
        """Publish what a step filled and hand out the tokens that it chose."""
        chosen = flight.step.chosen()
        now = self._clock()
        self._rates.computed(sum(flight.batch.values()), now - max(flight.begun, self._landed))
        self._landed = now
        self._counts["steps"] += 1
        self._release(flight)
        for request, count in flight.batch.items():
            row = flight.rows.get(request)
            self._counts["computed_tokens"] += count
            if request.finish is not None:  # it ended with the token before, or was cancelled
                self._counts["dropped_tokens"] += row is not None
                continue
            self._publish(request)
            if row is not None:
                request.pending -= 1
                self._accept(request, *chosen[row])

    def _release(self, flight: Flight) -> None:
        for lease, length in flight.released:
            self._pool.release(lease, length)

    def _chunk(self, request: Generation, count: int) -> Chunk:
        assert request.lease is not None
        end = request.computed + count
        tokens, follows = request.tokens[request.computed : end], None
        if request.pending:
            assert self._flight is not None and not tokens
            tokens, follows = [0], self._flight.rows[request]
        return Chunk(
            tokens=np.array(tokens, np.uint32),
            start=request.computed,
            slots=request.lease.slots[: -(-end // self._size)],
            want_logits=count == request.remaining,
            follows=follows,
        )

    def _ask(self, request: Generation) -> Ask:
        """Before the request is noted as pending in the step that is asked."""
        choose, looks = request.choose, True
        if isinstance(choose, Rules):
            looks = choose.edits.penalizes
        follows = None
        if request.pending:
            assert self._flight is not None
            follows = self._flight.rows[request]
        generated = request.generated if looks else ()
        return Ask(choose, request.chosen, generated, follows, request.top_logprobs)
