"""A fake model whose "keys and values" are the tokens themselves: a wrong block gives a wrong answer."""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import xxhash

from kvtool.blocks import namespace
from kvtool.cache.index import BlockIndex
from kvtool.cache.policies import POLICIES
from kvtool.cache.tiers import Move, Tier, TieredPool
from kvtool.engine.compute.runner import Chunk
from kvtool.engine.serving.chunking import Limits
from kvtool.engine.serving.generation import Choose, Delta, Generation
from kvtool.engine.serving.scheduler import Scheduler
from kvtool.engine.serving.steps import Ask, AtOnce, Chosen
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
        self.stream: FakeStream | None = None

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
            self.copy(move)
        return []

    def copy(self, move: Move) -> None:
        if self.stream is not None:
            self.stream.queue_copy(move)
        else:
            self.copy_now(move)

    def copy_now(self, move: Move) -> None:
        self.tiers[move.target][move.target_slot] = list(self.tiers[move.source][move.source_slot])

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
            self.memory.copy(move)


class FakeLift(FakeReading):
    """The same, for the host tier."""

    def place(self, first: int, last: int) -> None:  # type: ignore[override]
        self._copy(first, last)

    def cancel(self) -> None:
        pass


class FakeStream:
    """A device that computes beside the host, as late as it can: what was queued runs, in order, when
    somebody waits for a step. Watches that no slot gets a new owner while a step may still write to it."""

    ahead = True

    def __init__(self, memory: FakeMemory) -> None:
        self.memory = memory
        self.queue: deque[Callable[[], None]] = deque()
        self.flying: list[FakeStep] = []
        self.launched = 0
        self.overlapped = 0
        self.asks: list[Ask] = []
        memory.stream = self

    def launch(self, chunks: Sequence[Chunk], asked: Sequence[Ask]) -> "FakeStep":
        before = self.flying[-1] if self.flying else None
        for chunk in chunks:
            for slot, place in self.writes(chunk).items():
                for other in self.written(slot):
                    same = other.start + len(other.tokens) == chunk.start
                    assert same and other.slots[place : place + 1] == [slot], "a slot has two writers"
        step = FakeStep(self, list(chunks), list(asked), before)
        self.flying.append(step)
        self.asks += asked
        assert len(self.flying) <= 2
        self.launched += 1
        self.queue.append(step.run)
        return step

    def queue_copy(self, move: Move) -> None:
        for tier, slot in ((move.source, move.source_slot), (move.target, move.target_slot)):
            assert tier is not Tier.DEVICE or not self.written(slot), "a slot is moved that is being written"
        self.queue.append(lambda: self.memory.copy_now(move))

    def writes(self, chunk: Chunk) -> dict[int, int]:
        """Slots that a chunk fills -> their places in its table."""
        size = self.memory.size
        places = range(chunk.start // size, -(-(chunk.start + len(chunk.tokens)) // size))
        return {chunk.slots[place]: place for place in places}

    def written(self, slot: int) -> list[Chunk]:
        return [chunk for step in self.flying for chunk in step.chunks if slot in self.writes(chunk)]


class FakeStep:
    """A step on a FakeStream."""

    def __init__(
        self, stream: FakeStream, chunks: list[Chunk], asked: list[Ask], before: "FakeStep | None"
    ) -> None:
        self.stream = stream
        self.chunks = chunks
        self.asked = asked
        self.before = before
        self.answers: list[int] | None = None

    def run(self) -> None:
        known = []
        for chunk in self.chunks:
            if chunk.follows is not None:
                assert self.before is not None and self.before.answers is not None
                token = self.before.answers[chunk.follows]
                chunk = replace(chunk, tokens=np.array([token], np.uint32))
            known.append(chunk)
        self.answers = self.stream.memory.forward(known)

    def chosen(self) -> list[Chosen]:
        self.stream.overlapped += self.stream.flying[-1] is not self
        while self.answers is None:
            self.stream.queue.popleft()()
        self.stream.flying.remove(self)
        return [
            (answer, None) if ask.on_device else ask(answer)
            for answer, ask in zip(self.answers, self.asked, strict=True)
        ]


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
        ahead: bool = False,
    ) -> None:
        """ahead: the device computes beside the host."""
        self.memory = FakeMemory(block_size)
        self.pool = pool or TieredPool(POLICIES.load("lru"), device, host, disk)
        self.index = BlockIndex(self.pool, block_size, 10_000)
        self.memory.index = self.index
        self.now = 0.0
        self.tick = 1.0
        self.scheduler = Scheduler(
            FakeStream(self.memory) if ahead else AtOnce(self.memory.forward),
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
        choose: Choose | None = None,
        salt: str = "",
    ) -> Answered:
        """choose: by default what the model says; on a stream `Rules`, which it may choose by itself."""
        answered = Answered.__new__(Answered)
        answered.deltas = []
        answered.request = Generation(
            prompt=np.array(prompt, np.uint32),
            root=namespace("fake", tenant, salt) if tenant else ROOT,
            tenant=tenant,
            priority=priority,
            max_tokens=max_tokens,
            choose=choose or (lambda logits, _: int(logits)),
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
