"""A fake model whose "keys and values" are the tokens themselves: a wrong block gives a wrong answer."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import xxhash

from kvtool.blocks import namespace
from kvtool.cache.index import BlockIndex
from kvtool.cache.policies import POLICIES
from kvtool.cache.tiers import Move, Tier, TieredPool
from kvtool.engine.compute.runner import Chunk
from kvtool.engine.serving.generation import Delta, Generation
from kvtool.engine.serving.scheduler import Limits, Scheduler
from kvtool.engine.serving.text import Detokenizer, StopFilter
from kvtool.engine.storage.outlook import Outlook
from kvtool.tokens import BytesTokenizer

ROOT = namespace("fake")
END = 7


def next_token(history: Sequence[int]) -> int:
    """The fake model: depends on every token before."""
    return xxhash.xxh3_64_intdigest(np.array(history, "<u4").tobytes()) % 50


def expected_answer(prompt: Sequence[int], max_tokens: int) -> list[int]:
    """What a server without a cache would answer."""
    tokens = [int(token) for token in prompt]
    for _ in range(max_tokens):
        tokens.append(next_token(tokens))
        if tokens[-1] == END:
            break
    return tokens[len(prompt) :]


class FakeMemory:
    """Slots of all tiers hold tokens; runs chunks and executes moves. `bad` copies fail to load;
    of each load only `arriving` blocks come; blocks of the disk come after `polls` looks."""

    def __init__(self, block_size: int) -> None:
        self.size = block_size
        self.tiers: dict[Tier, dict[int, list[int]]] = defaultdict(dict)
        self.bad: set[tuple[Tier, int]] = set()
        self.steps: list[list[int]] = []
        self.arriving = 1 << 30
        self.polls = 0
        self.reads: list[int] = []
        self.lifts: list[int] = []
        self.index: BlockIndex | None = None

    def forward(self, chunks: Sequence[Chunk]) -> list[int]:
        device = self.tiers[Tier.DEVICE]
        self.steps.append([len(chunk.tokens) for chunk in chunks])
        for chunk in chunks:
            for position, token in enumerate(chunk.tokens.tolist(), chunk.start):
                slot = chunk.slots[position // self.size]
                block = device.get(slot, []) if position % self.size else []
                device[slot] = [*block[: position % self.size], token]
        answers = []
        for chunk in chunks:
            if chunk.want_logits:
                length = chunk.start + len(chunk.tokens)
                history = [token for slot in chunk.slots for token in device[slot]][:length]
                assert len(history) == length, "a block table with holes"
                answers.append(next_token(history))
        return answers

    def execute(self, moves: Sequence[Move]) -> list[Move]:
        for move in moves:
            self.tiers[move.target][move.target_slot] = list(self.tiers[move.source][move.source_slot])
        return []

    def read(self, loads: Sequence[Move]) -> "FakeReading":
        self.reads += [move.node for move in loads]
        return FakeReading(self, list(loads))

    def lift(self, moves: Sequence[Move]) -> "FakeLift":
        self.lifts += [move.node for move in moves]
        return FakeLift(self, list(moves))

    def chain_to(self, block: bytes) -> list[int]:
        assert self.index is not None
        return self.index.path(self.index.find(block))


class FakeReading:
    """Blocks arrive when the memory says so."""

    def __init__(self, memory: FakeMemory, loads: list[Move]) -> None:
        self.memory = memory
        self.loads = loads
        self.looks = 0

    def arrived(self) -> int:
        self.looks += 1
        return next(
            (at for at in range(len(self.loads)) if at in self.failed() or not self._here(at)),
            len(self.loads),
        )

    def failed(self) -> list[int]:
        bad = self.memory.bad
        return [at for at, move in enumerate(self.loads) if (move[1:3]) in bad and self._here(at)]

    def done(self) -> bool:
        self.looks += 1
        return all(map(self._here, range(len(self.loads))))

    def _here(self, at: int) -> bool:
        slow = self.loads[at].source > Tier.HOST and self.looks <= self.memory.polls
        return at < self.memory.arriving and not slow

    def place(self, count: int) -> None:
        self._copy(0, count)

    def _copy(self, first: int, last: int) -> None:
        for move in self.loads[first:last]:
            source = self.memory.tiers[move.source][move.source_slot]
            self.memory.tiers[move.target][move.target_slot] = list(source)


class FakeLift(FakeReading):
    """The same, for the host tier."""

    def place(self, first: int, last: int) -> None:  # type: ignore[override]
        self._copy(first, last)

    def cancel(self) -> None:
        pass


@dataclass
class Answered:
    """A request and what came back."""

    request: Generation
    deltas: list[Delta] = field(default_factory=list)


class FakeEngine:
    """A scheduler over the fake model. Its clock goes on by `tick` seconds whenever it is read."""

    def __init__(
        self,
        device: int,
        host: int = 0,
        disk: int = 0,
        block_size: int = 4,
        limits: Limits | None = None,
        pool: TieredPool | None = None,
        outlook: Outlook | None = None,
    ) -> None:
        self.memory = FakeMemory(block_size)
        self.pool = pool or TieredPool(POLICIES.load("lru"), device, host, disk)
        self.index = BlockIndex(self.pool, block_size, 10_000)
        self.memory.index = self.index
        self.now = 0.0
        self.tick = 1.0
        self.scheduler = Scheduler(
            self.memory.forward,
            self.pool,
            self.index,
            self.memory,
            limits or Limits(16, 8),
            self.clock,
            outlook,
        )

    def clock(self) -> float:
        self.now += self.tick
        return self.now

    def ask(
        self,
        prompt: Sequence[int],
        max_tokens: int = 4,
        session: str | None = None,
        tenant: str = "",
        priority: int = 0,
    ) -> Answered:
        answered = Answered.__new__(Answered)
        answered.deltas = []
        answered.request = Generation(
            prompt=np.array(prompt, np.uint32),
            root=namespace("fake", tenant) if tenant else ROOT,
            priority=priority,
            max_tokens=max_tokens,
            choose=lambda logits, _: int(logits),
            emit=lambda delta: answered.deltas.append(delta),
            ends=frozenset([END]),
            detokenizer=Detokenizer(BytesTokenizer()),
            stop=StopFilter([]),
            session=session,
        )
        self.scheduler.submit(answered.request)
        return answered

    def run(self) -> None:
        """Step until nothing is left; every step must make progress."""
        for _ in range(20_000):
            if not self.scheduler.step() and not self.scheduler.reading:
                assert not self.scheduler.waiting and not self.scheduler.running, "stuck"
                return
        raise AssertionError("did not end")


@pytest.fixture
def fake_engine() -> Callable[..., FakeEngine]:
    return FakeEngine


@pytest.fixture
def answer() -> Callable[[Sequence[int], int], list[int]]:
    return expected_answer
