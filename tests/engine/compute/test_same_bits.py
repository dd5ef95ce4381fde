"""In float32 on CPU cores a prefix that was reused leaves no trace: logits and blocks are the same bits."""

import numpy as np
import pytest
import torch

from kvtool.engine.compute.cpu import team
from kvtool.engine.compute.runner import Chunk

pytestmark = pytest.mark.skipif(team.torch_team() is None, reason="torch has no workers to lend")

NAMES = ("grouped-query llama", "mixed gemma3", "sliding mistral")


@pytest.mark.parametrize("name", NAMES)
def test_any_cut_of_a_prompt_gives_the_same_logits_and_blocks(tiny, bench, make_prompt, name):
    pair = tiny(name)
    tokens = make_prompt(160)
    run = bench(pair.model)
    slots = run.take(160)
    logits = run.prefill(tokens, slots)
    for chunk, seed in ((1, 3), (7, None), (64, 5)):
        other = bench(pair.model, seed=seed)
        table = other.take(160)
        assert torch.equal(other.prefill(tokens, table, chunk=chunk), logits)
        for ours, theirs in zip(other.arena.read_blocks(table), run.arena.read_blocks(slots), strict=True):
            assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


@pytest.mark.parametrize("name", NAMES)
def test_any_company_gives_the_same_logits(tiny, bench, make_prompt, name):
    pair = tiny(name)
    run = bench(pair.model, slots=128, block_size=8)
    trunk = make_prompt(96)
    shared = run.take(96)
    run.prefill(trunk, shared)
    batch = [
        Chunk(make_prompt(count, seed=number), 96, shared + run.take(count), count)
        for number, count in enumerate((1, 1, 17, 1, 30))
    ]
    alone = [run.runner.step([chunk]) for chunk in batch]
    assert torch.equal(run.runner.step(batch), torch.cat(alone))
    assert torch.equal(run.runner.step(batch[::-1]), torch.cat(alone[::-1]))


def test_the_embedded_model_answers_a_hit_as_a_miss_bit_for_bit(embedded_pair, bench):
    tokens = np.random.default_rng(0).integers(100, 49000, 700).astype(np.uint32)
    run = bench(embedded_pair.model, slots=64, block_size=32)
    missed = run.take(700)
    miss = run.prefill(tokens, missed, chunk=512)[-1:]
    first = run.take(640)
    run.prefill(tokens[:640], first, chunk=200)
    hit = run.prefill(tokens, first[:20] + run.take(60), 640)[-1:]
    assert torch.equal(hit, miss)
