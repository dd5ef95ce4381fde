"""What runs in the next step: continuous batching over the tiered pool. One thread, no clock of its own.

A step admits waiting requests, packs one forward of decodes and prefill chunks, publishes the blocks
that it filled and chooses tokens. A request whose next block another request is computing or loading
waits for it, so that every distinct token is computed once. Blocks of lower tiers are read beside the
forwards. When the pool is full the youngest request is put back and later recomputed, mostly from its
own blocks.
"""

import math
from collections import Counter, deque
from collections.abc import Callable
from itertools import chain

import numpy as np

from kvtool.blocks import reusable_blocks
from kvtool.cache.index import BlockIndex
from kvtool.cache.tiers import Tier, TieredPool
from kvtool.engine.compute.logprobs import TokenLogprob
from kvtool.engine.serving.chunking import Limits, prefills
from kvtool.engine.serving.flights import Flights
from kvtool.engine.serving.foresight import Foresight, Session
from kvtool.engine.serving.generation import Generation
from kvtool.engine.serving.loading import Loads, Store
from kvtool.engine.serving.pins import Pins
from kvtool.engine.serving.prefetch import Prefetch
from kvtool.engine.serving.rates import Rates
from kvtool.engine.serving.steps import Steps
from kvtool.engine.storage.outlook import Outlook

KEPT_SHARE = 0.25
"""Most of the device pool that clients can keep for their sessions."""

ASKED = 60.0
"""Seconds that blocks stay up that an admin asked for."""


class Scheduler:
    """Owns all requests from submission to their last Delta. `counts` only grow."""

    def __init__(
        self,
        steps: Steps,
        pool: TieredPool,
        index: BlockIndex,
        store: Store,
        limits: Limits,
        clock: Callable[[], float],
        outlook: Outlook | None = None,
    ) -> None:
        self.pool = pool
        self.index = index
        self.waiting: deque[Generation] = deque()
        self.running: list[Generation] = []
        self.pins = Pins(pool)
        self.kept = Pins(pool, KEPT_SHARE)
        self.counts: Counter[str] = Counter()
        self.rates = Rates(index.block_size)
        self.loads = Loads(pool, store, self.rates, self.counts)
        self.prefetch = Prefetch(pool, store, self.rates, self.counts, self.execute_moves)
        self.foresight = Foresight(outlook, index, store.chain_to, self.prefetch)
        self.flights = Flights(
            steps, pool, self.rates, self.counts, clock, index.block_size, self._publish, self._accept
        )
        self._store = store
        self._limits = limits
        self._clock = clock
        self._size = index.block_size

    def most_tokens(self) -> int:
        """Longest prompt and answer together that the pool can hold."""
        return self.pool.device.capacity * self._size

    def submit(self, request: Generation) -> None:
        """Queue a request; prompt and answer must fit in the pool."""
        assert len(request.prompt) + request.max_tokens - 1 <= self.most_tokens()
        self.waiting.append(request)

    def cancel(self, request: Generation) -> None:
        """Drop a request at once, whatever its state; ended ones are left alone."""
        if request.finish is None:
            self._leave(request)
            request.end("cancelled")

    def fail_all(self) -> None:
        """The engine broke: every request ends as failed."""
        self.flights.abandon()
        for request in [*self.running, *self.waiting]:
            self._leave(request)
            request.end("failed")

    def execute_moves(self) -> None:
        """Let the store catch up with the pool; whoever makes the pool move blocks calls it."""
        moves = self.pool.take_moves()
        for move in moves:
            self.counts[f"moves_{move.source.name.lower()}_{move.target.name.lower()}"] += 1
        for move in self._store.execute(moves):
            if self.pool.lower[move.target].slot_of(move.node) == move.target_slot:  # still
                self.pool.discard(move.node, move.target)
            self.pool.unwritten.add(move.node)
            self.counts["failed_moves"] += 1

    def step(self) -> bool:
        """Admit, launch one forward, publish and choose. False when there was nothing to run."""
        self.flights.land_unless_foreseen()
        self._finish_loads()
        self._look_ahead()
        self._admit()
        self._fetch_for_waiting()
        batch = self._plan()
        busy = bool(batch or self.flights)
        self.flights.launch(batch)
        return busy

    def now(self) -> float:
        """The clock, in seconds."""
        return self._clock()

    @property
    def reading(self) -> bool:
        """Whether blocks are on their way: there will be something to do soon."""
        return bool(len(self.loads)) or bool(self.prefetch.coming())

    def fetch(self, nodes: list[int]) -> int:
        """Bring a coming prompt's blocks up to the host tier, else to the device. Returns their number."""
        now = self._clock()
        if self.prefetch.able:
            return self.prefetch.begin("asked", nodes, "asked", now, now + ASKED)
        found = len(self.pool.locate(nodes))
        if not found or not self.pool.device.fits(nodes[:found], found):
            return 0
        lease = self.pool.acquire(nodes[:found], found, now)
        assert lease is not None
        self.execute_moves()
        self.loads.begin(lease, now, None)
        return len(lease.loads)

    def _look_ahead(self) -> None:
        """Take in and begin reads for requests that are not running yet."""
        if len(self.foresight):
            self.foresight.poll(self._clock())
        if len(self.prefetch):
            self.prefetch.poll(self._clock())

    def _fetch_for_waiting(self) -> None:
        """A request that must wait for its turn has its blocks read meanwhile."""
        if not self.prefetch.able:
            return
        coming: set[int] | None = None
        for request in self.waiting:
            if request.fetched or request.cached is not None:
                continue
            coming = coming if coming is not None else self._coming()
            self._name(request)
            nodes = request.nodes[: reusable_blocks(len(request.tokens), self._size)]
            if self._is_coming(nodes, coming):
                continue
            request.fetched = True
            self.prefetch.begin(request, nodes, "arrival", self._clock(), math.inf)

    def _coming(self) -> set[int]:
        """Blocks that somebody is reading or computing."""
        coming = {*self.loads.nodes(), *self.prefetch.coming()}
        for running in self.running:
            assert running.lease is not None
            coming.update(running.nodes[running.lease.published :])
        return coming

    def _name(self, request: Generation) -> None:
        """Find the request's blocks in the index."""
        if request.named < len(request.tokens):
            tokens = np.array(request.tokens, np.uint32)
            request.nodes = self.index.chain(tokens, request.root, request.public // self._size)
            request.named = len(request.tokens)

    def _admit(self) -> None:
        for pins in (self.pins, self.kept):
            pins.expire(self._clock())
        queued = (node for request in [*self.waiting, *self.running] for node in request.nodes)
        self.index.trim(chain(queued, self.prefetch.nodes()))
        if not self.waiting:
            return
        coming = self._coming()
        passed: set[int] = set()
        while (request := self._next(passed)) is not None and len(self.running) < self._limits.running:
            passed.add(id(request))
            self._name(request)
            most = reusable_blocks(len(request.tokens), self._size)
            if self._is_coming(request.nodes[:most], coming):
                if self._is_coming(request.nodes[:most], {*self.loads.nodes(), *self.prefetch.coming()}):
                    self._waits(request)
                continue
            if not self._lease(request, most):
                return
            self.waiting.remove(request)
            self.running.append(request)
            assert request.lease is not None
            coming.update(request.nodes[request.lease.published :])

    def _next(self, passed: set[int]) -> Generation | None:
        """Whose turn it is: the tenant with the least running; of its requests priority, then age decides."""
        busy = Counter(request.tenant for request in self.running)
        left = [request for request in self.waiting if id(request) not in passed]
        return min(left, key=lambda request: (busy[request.tenant], request.priority), default=None)

    def _is_coming(self, nodes: list[int], coming: set[int]) -> bool:
        """Whether a block that this request would load, or the first that it would compute, is on its way."""
        on_device = self.pool.device.match(nodes)
        found = len(self.pool.locate(nodes))
        return any(node in coming for node in nodes[on_device : found + 1])

    def _give_way(self) -> bool:
        """Live traffic needs room: what sessions keep goes first, then what the admin pinned."""
        return self.kept.give_way() or self.pins.give_way()

    def _waits(self, request: Generation) -> None:
        """A request whose turn it is waits for blocks that are being read."""
        self.counts["waits"] += not request.waited
        request.waited = True

    def _lease(self, request: Generation, most: int) -> bool:
        """Hits, loads and slots for all of the request's tokens; False while there is no room."""
        want = -(-len(request.tokens) // self._size)
        while not self.pool.device.fits(request.nodes, want, most):
            if not self._give_way():
                return False
        tiers = self.pool.locate(request.nodes[:most])
        most = min(most, self.rates.worth_loading(tiers))
        now = self._clock()
        lease = self.pool.acquire(request.nodes, want, now, request.session, most)
        assert lease is not None
        self.execute_moves()
        self.prefetch.used(request.nodes[: lease.hit + len(lease.loads)])
        self.prefetch.end(request)
        request.lease = lease
        request.computed = lease.hit * self._size
        if lease.loads:
            request.loading = True
            self.loads.begin(lease, now, request)
            self.counts["demand_blocks"] += sum(move.source > Tier.HOST for move in lease.loads)
            self._finish_loads()
            if request.loading:
                self._waits(request)
        else:
            self._start(request, [])
        return True

    def _finish_loads(self) -> None:
        """Requests whose blocks are here, or will not come in time, take part in the next forward."""
        if not len(self.loads):
            return
        for load in self.loads.poll(self._clock()):
            if load.request is None:
                lease = load.lease
                self.prefetch.landed(lease.nodes[lease.hit : lease.hit + lease.loaded], "asked")
                self.pool.release(lease)
                continue
            load.request.loading = False
            self._start(load.request, load.tiers[: load.lease.loaded])

    def _start(self, request: Generation, sources: list[Tier]) -> None:
        """All that the request could get is on the device, some of it from `sources`."""
        lease = request.lease
        assert lease is not None
        request.computed = (lease.hit + lease.loaded) * self._size
        if request.cached is not None:  # it was put back: what it finds of itself is no hit
            self.counts["restored_tokens"] += request.computed
            return
        request.cached = request.computed
        if request.session is not None:
            self.foresight.started((request.root, request.session), request.nodes, self._clock())
        self.counts["requests"] += 1
        self.counts["prompt_tokens"] += len(request.prompt)
        self.counts["hit_tokens_device"] += lease.hit * self._size
        for tier in sources:
            self.counts[f"hit_tokens_{tier.name.lower()}"] += self._size

    def _plan(self) -> list[tuple[Generation, int]]:
        """(request, tokens to compute) of the next forward: all decodes, then prefill within the budget."""
        decodes = [
            request
            for request in list(self.running)
            if request.remaining == 1
            and not request.loading
            and request.chosen < request.max_tokens
            and self._room_for_next(request)
        ]
        batch = [(request, 1) for request in decodes if request.lease is not None]  # some were put back since
        return [*batch, *prefills(self.running, self._limits, self._size)]

    def _room_for_next(self, request: Generation) -> bool:
        """A slot for the token to decode; the youngest requests, perhaps this one, are put back for it."""
        if request.lease is None:
            return False
        while len(request.lease.slots) * self._size <= request.computed:
            if self.pool.extend(request.lease, 1):
                self.execute_moves()
                break
            if self.flights:  # perhaps it ends an answer, and whoever is put back needs its token
                self.flights.land()
                if request.lease is None:
                    return False
                continue
            if self._give_way():
                continue
            victim = self.running[-1]
            self._put_back(victim)
            if victim is request:
                return False
        return True

    def _put_back(self, request: Generation) -> None:
        self._leave(request)
        self.waiting.appendleft(request)
        self.counts["preemptions"] += 1

    def _leave(self, request: Generation) -> None:
        """Take a request out of the queues; its published blocks stay in the pool."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        if request.lease is not None:
            self.loads.abandon(request)
            request.loading = False
            ended = request.finish in ("stop", "length")
            length = len(request.tokens) - len(request.prompt) if ended else -1
            self.flights.end(request, length)
            request.lease = None
            if ended and request.session is not None:
                self._remember((request.root, request.session), request)
        self.prefetch.end(request)
        request.nodes, request.named, request.computed, request.pending = [], 0, 0, 0

    def _remember(self, session: Session, request: Generation) -> None:
        """What the session's next request will probably begin with, and how long its client wants it kept."""
        if request.nodes:
            self.foresight.ended(session, request.nodes[-1])
        if request.keep:
            self.kept.hold(request.nodes, request.keep, self._clock(), session)
        elif request.keep == 0:  # there is no next request
            self.kept.let_go(session)
            self.foresight.forget(session)

    def _publish(self, request: Generation) -> None:
        """Blocks that are full now become hits for others; those of the answer get their names here.

        A block with a token that is not known here has no name yet.
        """
        lease, size = request.lease, self._size
        assert lease is not None
        full = min(request.computed, len(request.tokens)) // size
        while len(lease.nodes) < full and len(lease.nodes) * size >= len(request.prompt) // size * size:
            start = len(lease.nodes) * size
            parent = lease.nodes[-1] if lease.nodes else -1
            block = np.array(request.tokens[start : start + size], np.uint32)
            node = self.index.child(parent, block, request.root)
            if node is None:
                break
            self.pool.append(lease, node, self._clock(), request.session)
            request.nodes.append(node)
        upto = min(full, len(lease.nodes))
        for place in range(max(lease.published, self.flights.done(request) // size), upto):
            if self.pool.device.slot_of(lease.nodes[place]) >= 0:
                upto = place  # another's block replaces this one, not while a step writes to its slot
                break
        self.pool.commit(lease, upto)

    def _accept(self, request: Generation, token: int, logprob: TokenLogprob | None) -> None:
        self.counts["generated_tokens"] += 1
        request.accept(token, logprob)
        if request.finish is not None:
            self._leave(request)
