"""Whole models through the kernels: logits of plain transformers, whatever the shape of their attention."""

import numpy as np
import torch

from kvtool.engine.compute.runner import Chunk, Runner


def test_prefill_in_chunks_and_decode(tiny, bench, make_prompt, architecture):
    pair = tiny(architecture)
    tokens = make_prompt(45)
    run = bench(pair.model, block_size=16, seed=2)
    run.runner = Runner(pair.model, run.arena, kernels=True)
    slots = run.take(45)
    ours = run.prefill(tokens[:43], slots, chunk=24)
    for at in (43, 44):  # one by one: the keys are read by decodes
        ours = torch.cat([ours, run.runner.step([Chunk(tokens[at : at + 1], at, slots, True)])])
    torch.testing.assert_close(ours, pair.logits(tokens), atol=1e-4, rtol=0)


def test_mixed_batch_over_shared_blocks(tiny, bench, make_prompt):
    pair = tiny("grouped-query llama")
    run = bench(pair.model, block_size=16, seed=3)
    run.runner = Runner(pair.model, run.arena, kernels=True)
    trunk = make_prompt(32, seed=1)
    slots = run.take(32)
    run.prefill(trunk, slots)
    prompts = [np.concatenate([trunk, make_prompt(length, seed=length)]) for length in (1, 20, 7)]
    chunks = [Chunk(prompt[32:], 32, slots + run.take(len(prompt) - 32), True) for prompt in prompts]
    truth = torch.cat([pair.logits(prompt)[-1:] for prompt in prompts])
    torch.testing.assert_close(run.runner.step(chunks), truth, atol=1e-4, rtol=0)


def test_decodes_of_many_sequences(tiny, bench, make_prompt):
    pair = tiny("grouped-query llama")
    run = bench(pair.model, block_size=16, seed=4)
    run.runner = Runner(pair.model, run.arena, kernels=True)
    prompts = [make_prompt(length, seed=length) for length in (17, 40, 2)]
    tables = [run.take(len(prompt)) for prompt in prompts]
    for prompt, slots in zip(prompts, tables, strict=True):
        run.prefill(prompt[:-1], slots)
    chunks = [
        Chunk(prompt[-1:], len(prompt) - 1, slots, True)
        for prompt, slots in zip(prompts, tables, strict=True)
    ]
    truth = torch.cat([pair.logits(prompt)[-1:] for prompt in prompts])
    torch.testing.assert_close(run.runner.step(chunks), truth, atol=1e-4, rtol=0)
