"""Numerical truth through shards: prewarm, write, read back into a fresh arena, compare with transformers."""

from pathlib import Path

import numpy as np
import torch

from kvtool.analysis.build import build_workload
from kvtool.analysis.plan import PlanConfig, make_plan
from kvtool.blocks import hash_blocks, reusable_blocks
from kvtool.engine.prewarm import PrewarmConfig, prewarm
from kvtool.engine.storage.codec import block_bytes, load_codec
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.shards import open_shards
from kvtool.requests import Request, Source

BLOCK = 16
LENGTHS = [5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - 1, 3 * BLOCK, 3 * BLOCK + 1]


class Ids:
    """Stands in for an encoder: prompts are token ids already."""

    fingerprint = "ids"

    def encode(self, requests):
        return [each.token_ids for each in requests]


def prewarmed(pair, prompts: list[np.ndarray], folder: Path, codec: str = "raw"):
    """Shards of every full block of `prompts`, opened anew."""
    requests = [
        Request(id=str(number), source=Source("log", number + 1), token_ids=np.append(tokens, np.uint32(0)))
        for number, tokens in enumerate(prompts)
    ]
    workload = build_workload(requests, Ids(), BLOCK)
    shape = Identity.of_model(pair.model, BLOCK).shape
    made = load_codec({"codec": codec})
    plan = make_plan(
        workload,
        PlanConfig(min_requests=1),
        lambda depth: block_bytes(made, shape, depth == 0),
        pair.model.config.max_positions,
    )
    prewarm(plan, pair.model, folder, PrewarmConfig(codec))
    return open_shards(folder)


def restore(shards, run, tokens: np.ndarray, blocks: int, room: int) -> list[int]:
    """A block table in a poisoned arena whose first `blocks` blocks come from the shards."""
    slots = run.take(room)
    root = Identity.of_model(run.model, BLOCK).root()
    for slot, name in zip(slots, list(hash_blocks(tokens, BLOCK, root))[:blocks], strict=False):
        assert (
            shards.index[name].tokens.tolist() == tokens[shards.index[name].depth * BLOCK :][:BLOCK].tolist()
        )
        run.arena.write_block(slot, list(shards.read_block(name)))
    return slots


def check(pair, bench, tokens: np.ndarray, shards, new: int) -> None:
    """Logits after the stored prefix to 1e-4, and greedy answers token for token."""
    run = bench(pair.model, block_size=BLOCK)
    blocks = reusable_blocks(len(tokens), BLOCK)
    start = blocks * BLOCK
    slots = restore(shards, run, tokens, blocks, len(tokens) + new)
    truth = pair.logits(tokens)[start:]
    assert truth.std() > 0.1, "the reference says nothing"
    torch.testing.assert_close(run.prefill(tokens, slots, start), truth, atol=1e-4, rtol=0)
    again = restore(shards, run, tokens, blocks, len(tokens) + new)
    assert run.greedy(tokens, again, start, new) == pair.greedy(tokens, new)


def test_a_prefix_from_shards_equals_a_full_prefill(tiny, bench, make_prompt, tmp_path, architecture):
    """At every block boundary, on the trunk of a trie and on a branch that parts from it inside a block."""
    pair = tiny(architecture)
    trunk = make_prompt(max(LENGTHS))
    branch = np.concatenate([trunk[: 2 * BLOCK - 5], make_prompt(BLOCK + 9, seed=4)])
    shards = prewarmed(pair, [trunk, branch], tmp_path / "shards")
    assert len(shards.rows) == 3 + 2
    for tokens in (*(trunk[:length] for length in LENGTHS), branch):
        check(pair, bench, tokens, shards, 6)


def test_a_long_prefix_of_several_pieces_equals_a_full_prefill(
    tiny, bench, make_prompt, tmp_path, monkeypatch
):
    monkeypatch.setattr("kvtool.engine.schedule.CHUNK_TOKENS", 48)
    for architecture in ("grouped-query llama", "mixed gemma3"):
        pair = tiny(architecture)
        tokens = make_prompt(200)
        shards = prewarmed(pair, [tokens], tmp_path / architecture)
        check(pair, bench, tokens, shards, 6)


def test_the_embedded_model_answers_from_shards_as_without(embedded_pair, bench, make_prompt, tmp_path):
    text = "The harbour master wrote every arrival in a ledger: name of the ship, cargo, port of origin. " * 3
    tokens = embedded_pair.model.encoder.tokenizer.encode(text)[: 3 * BLOCK + 1]
    shards = prewarmed(embedded_pair, [tokens], tmp_path / "shards")
    for length in (3 * BLOCK - 1, 3 * BLOCK, 3 * BLOCK + 1):
        check(embedded_pair, bench, tokens[:length], shards, 5)


def test_int8_stays_close_and_is_not_raw(embedded_pair, bench, tmp_path):
    """Not exact, but the distribution of the next token moves by less than 0.003 nats."""
    text = "The harbour master wrote every arrival in a ledger: name of the ship, cargo, port of origin. " * 3
    tokens = embedded_pair.model.encoder.tokenizer.encode(text)[: 3 * BLOCK + 9]
    shards = prewarmed(embedded_pair, [tokens], tmp_path / "shards", "int8")
    run = bench(embedded_pair.model, block_size=BLOCK)
    slots = restore(shards, run, tokens, 3, len(tokens))
    ours = run.prefill(tokens, slots, 3 * BLOCK).log_softmax(-1)
    truth = embedded_pair.logits(tokens)[3 * BLOCK :].log_softmax(-1)
    kl = (truth.exp() * (truth - ours)).sum(-1).mean()
    assert 1e-7 < kl < 3e-3
