"""Steps as a GPU runs them, under Triton's interpreter: the CPU's tokens, also where the host lags behind."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kvtool.blocks import namespace
from kvtool.cache.index import BlockIndex
from kvtool.cache.policies import POLICIES
from kvtool.cache.tiers import TieredPool
from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.edits import Edits
from kvtool.engine.compute.load import load_model
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.quantized_arena import QuantizedArena
from kvtool.engine.compute.runner import Chunk, Runner
from kvtool.engine.compute.sampler import GREEDY, Sampling
from kvtool.engine.serving.choosing import Rules
from kvtool.engine.serving.chunking import Limits
from kvtool.engine.serving.generation import Delta, Generation
from kvtool.engine.serving.scheduler import Scheduler
from kvtool.engine.serving.steps import Ask, AtOnce, Chosen, Queued, Steps
from kvtool.engine.serving.text import Detokenizer, StopFilter
from kvtool.engine.storage.codec import load_codec
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.store import BlockStore
from kvtool.tokens import BytesTokenizer

pytest.importorskip("triton")
BLOCK = 16
WARM = Sampling(temperature=2.0, seed=9)


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return load_model(str(tiny_model))


class Logits:
    """A runner that answers what it is told."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits
        self.arena = SimpleNamespace(device=logits.device)

    def step(self, chunks: Any, previous: Any) -> torch.Tensor:
        return self.logits


def launched(logits: torch.Tensor, asked: list[Ask]) -> list[Chosen]:
    queued = Queued(Logits(logits))  # type: ignore[arg-type]
    return queued.launch([], asked).chosen()


def chosen(logits: torch.Tensor, asked: list[Ask]) -> list[int]:
    return [token for token, _ in launched(logits, asked)]


def test_greedy_rows_of_all_kinds_are_those_of_the_cpu() -> None:
    logits = torch.randn(5, 500, generator=torch.Generator().manual_seed(3))
    first = int(logits[2].argmax())
    asked = [
        Ask(Rules(GREEDY), 0),
        Ask(Rules(GREEDY, Edits({7: 100.0})), 1),
        Ask(Rules(GREEDY, Edits(frequency_penalty=2.0)), 2, [first, first], top_logprobs=3),
        Ask(lambda logits, generated: int(logits.argmin()) + len(generated), 2, [5, 5], top_logprobs=1),
        Ask(Rules(GREEDY), 2, top_logprobs=0),
    ]
    found = launched(logits, asked)
    assert found == AtOnce(lambda _: logits).launch([], asked).chosen()
    tokens = [token for token, _ in found]
    assert tokens[1] == 7 and tokens[2] != first and tokens[3] == int(logits[3].argmin()) + 2
    logprobs = [logprob for _, logprob in found]
    assert logprobs[:2] == [None, None]
    truth = logits[2].double().log_softmax(-1)  # of the model, not of what the penalties left
    assert logprobs[2].token == tokens[2] and logprobs[2].top[0][0] == first
    assert logprobs[2].logprob == pytest.approx(float(truth[tokens[2]]), abs=1e-5)
    assert [token for token, _ in logprobs[2].top] == truth.topk(3).indices.tolist()
    assert [len(each.top) for each in logprobs[3:]] == [1, 0]


def test_a_penalty_counts_the_token_that_the_host_does_not_know_yet() -> None:
    """Two steps in a row, the second launched before the first one's tokens were read."""
    logits = torch.zeros(2, 300)
    logits[:, [20, 10, 30]] = torch.tensor([9.0, 8.5, 8.2])
    queued = Queued(Logits(logits))  # type: ignore[arg-type]
    rules = Rules(GREEDY, Edits(presence_penalty=1.0))
    first = queued.launch([], [Ask(Rules(GREEDY), 0), Ask(rules, 1, [10])])
    second = queued.launch([], [Ask(rules, 2, [10], follows=1), Ask(Rules(GREEDY), 1, follows=0)])
    assert [token for token, _ in first.chosen()] == [20, 20]
    assert [token for token, _ in second.chosen()] == [30, 20]


def test_a_seeded_row_is_the_same_beside_others_and_moves_on_with_its_answer() -> None:
    logits = torch.randn(1, 500, generator=torch.Generator().manual_seed(4)).expand(3, 500)
    warm = Rules(WARM)
    alone = chosen(logits[:1], [Ask(warm, 0)])
    beside = [Ask(Rules(GREEDY), 0), Ask(Rules(GREEDY, Edits({1: -1.0})), 0), Ask(warm, 0)]
    assert chosen(logits, beside)[2:] == alone
    assert len({chosen(logits[:1], [Ask(warm, index)])[0] for index in range(12)}) > 3


@pytest.mark.parametrize("kernels", [False, True])
def test_a_chunk_that_follows_gets_the_token_on_the_device(model: Model, kernels: bool) -> None:
    """In a prefill, as a decode in a graph's buffers, and beside a chunk that follows nobody."""
    generator = np.random.default_rng(1)
    one, two = (generator.integers(0, 256, count).astype(np.uint32) for count in (20, 33))
    found = []
    for follows in (False, True):
        runner = Runner(model, Arena(model, 8, BLOCK), kernels)
        runner.step([Chunk(one, 0, [3, 1]), Chunk(two, 0, [0, 5, 2])])
        chosen = torch.tensor([77, 41, 5])

        def last(place: int, start: int, slots: list[int]) -> Chunk:
            if follows:  # noqa: B023
                return Chunk(np.zeros(1, np.uint32), start, slots, True, follows=place)
            return Chunk(np.array([chosen[place]], np.uint32), start, slots, True)  # noqa: B023

        decodes = [last(2, 20, [3, 1]), last(0, 33, [0, 5, 2])]
        logits = runner.step(decodes, chosen).clone()
        more = [Chunk(two[:5], 0, [7]), last(1, 21, [3, 1])]
        found.append(torch.cat([logits, runner.step(more, chosen)]))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0][0], found[0][1])


def answers(
    model: Model, make: Callable[[Runner], Steps], kernels: bool, device: Arena, tokens: int = 18
) -> tuple[list[Any], dict[str, int]]:
    """Six requests of all kinds in a pool too small for them: (tokens, logprobs) of each, and the counts."""
    shape = Identity.of_model(model, BLOCK).shape
    store = BlockStore(device, shape, load_codec({"codec": "raw"}))
    pool = TieredPool(POLICIES.load("lru"), 10)
    index = store.index = BlockIndex(pool, BLOCK, 1000)
    steps = make(Runner(model, device, kernels))
    ticks = iter(range(1 << 30))
    scheduler = Scheduler(steps, pool, index, store, Limits(32, 4), lambda: float(next(ticks)))
    kinds = [
        {},
        {"choose": Rules(GREEDY, Edits({65: 5.0}))},
        {"top_logprobs": 2},
        {"choose": Rules(GREEDY, Edits(frequency_penalty=1.0))},
        {},
        {"max_tokens": 1},
    ]
    found: list[Any] = []
    for number, kind in enumerate(kinds):
        deltas: list[Delta] = []
        fields = {"choose": Rules(GREEDY), "max_tokens": tokens, **kind}
        request = Generation(
            prompt=np.frombuffer(b"the same words " * 2 + bytes([65 + number]) * 8, np.uint8).astype(
                np.uint32
            ),
            root=namespace("test"),
            emit=deltas.append,
            ends=frozenset([257]),
            detokenizer=Detokenizer(BytesTokenizer()),
            stop=StopFilter([]),
            **fields,  # type: ignore[arg-type]
        )
        scheduler.submit(request)
        found.append((request, deltas))
    while scheduler.step():
        pool.check()
    store.close()
    assert pool.device.available() == 10
    logprobs = [[each.token for delta in deltas for each in delta.logprobs] for _, deltas in found]
    assert logprobs[2] == found[2][0].generated and not logprobs[0]
    return [request.generated for request, _ in found], dict(scheduler.counts)


def test_a_server_that_lags_behind_its_device_gives_the_same_answers(model: Model) -> None:
    at_once, counts = answers(model, lambda runner: AtOnce(runner.step), False, Arena(model, 10, BLOCK))
    queued, others = answers(model, Queued, True, Arena(model, 10, BLOCK))
    assert queued == at_once
    assert counts["preemptions"] and others["preemptions"]
    assert others["generated_tokens"] == counts["generated_tokens"] == sum(map(len, queued))


def test_so_does_one_whose_blocks_stay_quantized(model: Model) -> None:
    codec: Any = load_codec({"codec": "int8"})
    found = []
    for make, kernels in ((lambda runner: AtOnce(runner.step), False), (Queued, True)):
        arena = QuantizedArena(model, 10, BLOCK, codec, 8, kernels)
        for tensor in (*arena.keys, *arena.values):
            tensor.fill_(torch.nan)
        generated, counts = answers(model, make, kernels, arena, 15)
        assert counts["preemptions"]
        found.append(generated)
    assert found[1] == found[0]
