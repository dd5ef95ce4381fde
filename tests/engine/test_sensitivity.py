"""Sensitivity and trials on tiny models, against brute force."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from kvtool.engine import profile
from kvtool.engine.compute.load import load_model
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.runner import Chunk
from kvtool.engine.sensitivity import block_sensitivity, layer_damage
from kvtool.engine.storage.codec import Mixed, load_codec
from kvtool.engine.trials import Continuation, Trials

RAW, INT4, K3V2 = (load_codec({"codec": name}) for name in ("raw", "int4", "k3v2"))
SIZE = 16


@dataclass(frozen=True)
class Chain:
    block_size: int
    tokens: np.ndarray
    depth: np.ndarray


def chain(
    blocks: int = 4, tail: int = 20, call: bool = False, vocab: int = 199
) -> tuple[Chain, Continuation]:
    tokens = np.random.default_rng(3).integers(2, vocab, blocks * SIZE + tail).astype(np.uint32)
    plan = Chain(SIZE, tokens[: blocks * SIZE].reshape(blocks, SIZE), np.arange(blocks, dtype=np.int32))
    return plan, Continuation(tuple(range(blocks)), tokens[blocks * SIZE :], call)


def one_layer(folder: Path, window: int | None) -> Model:
    """A model whose only layer's queries cannot depend on what its blocks hold."""
    config = transformers.MistralConfig(
        vocab_size=199,
        hidden_size=48,
        num_hidden_layers=1,
        num_attention_heads=6,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=512,
        sliding_window=window,
        initializer_range=0.2,
    )
    torch.manual_seed(5)
    transformers.utils.logging.disable_progress_bar()
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return load_model(str(folder))


@pytest.mark.parametrize("window", [None, 40])
def test_sensitivity_is_the_error_with_one_block_exchanged(tmp_path: Path, window: int | None) -> None:
    model = one_layer(tmp_path / "model", window)
    plan, asked = chain()
    trials = Trials(model, plan, [asked])
    exact = trials.exact(asked.rows)
    found = block_sensitivity(trials, asked, lambda row: INT4)
    outputs: list[torch.Tensor] = []
    attention = next(module for name, module in model.module.named_modules() if name.endswith("self_attn"))
    hook = attention.register_forward_hook(lambda _, __, output: outputs.append(output[0][0].clone()))
    trials.over(exact, asked.tokens)
    for row in asked.rows:
        one = [trials.restored(row, INT4) if other == row else exact[other] for other in asked.rows]
        trials.over(one, asked.tokens)
    hook.remove()
    right, *others = outputs
    for row, wrong in enumerate(others):
        expected = (wrong - right).square().sum(-1) / right.square().sum(-1)
        assert found[row] == pytest.approx(float(expected.mean()), rel=1e-3, abs=1e-12)
    assert (found[:1] == 0).all() if window else (found > 0).all()  # rows of a window do not see block 0


def test_exact_blocks_are_computed_once_and_are_the_models(tiny_model: Path) -> None:
    model = load_model(str(tiny_model))
    plan, asked = chain(vocab=250)
    trials = Trials(model, plan, [asked])
    first = [[pair[0].clone() for pair in block] for block in trials.exact(asked.rows[:2])]
    assert trials.tokens == 2 * SIZE
    whole = trials.exact(asked.rows)
    assert trials.tokens == 4 * SIZE
    assert all(
        torch.equal(keys, pair[0])
        for old, new in zip(first, whole, strict=False)
        for keys, pair in zip(old, new, strict=True)
    )
    together = trials._runner.step(
        [Chunk(np.concatenate([plan.tokens.ravel(), asked.tokens]), 0, range(8), 20)]
    )
    assert (trials.over(whole, asked.tokens) - together).abs().max() < 1e-4


def test_raw_costs_nothing_and_fewer_bits_cost_more(tiny_model: Path) -> None:
    model = load_model(str(tiny_model))
    plan, asked = chain(call=True, vocab=250)
    trials = Trials(model, plan, [asked])
    raw, int4, k3v2 = (trials.damage(asked, lambda row, codec=codec: codec) for codec in (RAW, INT4, K3V2))
    assert raw.kl < 1e-6 and raw.same_answer
    assert raw.kl < int4.kl < k3v2.kl


def test_another_answer_is_noticed(tiny_model: Path) -> None:
    model = load_model(str(tiny_model))
    plan, asked = chain(call=True, vocab=250)
    trials = Trials(model, plan, [asked])
    _, answer = trials._truth_of(asked, trials.exact(asked.rows))
    assert 0 < len(answer) <= 24
    right = answer.tolist()
    tokens = asked.tokens.tolist()
    while len(tokens) < len(asked.tokens) + len(right):  # token by token, over the whole prompt anew
        prompt = np.array([*plan.tokens.ravel().tolist(), *tokens], np.uint32)
        tokens.append(int(trials._runner.step([Chunk(prompt, 0, range(8), 1)])[0].argmax()))
    assert tokens[len(asked.tokens) :] == right
    truth, _ = trials._truth[asked.rows, asked.tokens.tobytes(), asked.call]
    place = len(asked.tokens) + len(right) // 2
    truth[place - 1, :] = truth[
        place - 1, torch.randperm(truth.shape[1], generator=torch.Generator().manual_seed(1))
    ]
    assert not trials.damage(asked, lambda row: RAW).same_answer
    assert trials.damage(Continuation(asked.rows, asked.tokens), lambda row: RAW).same_answer  # not asked for


def test_layer_damage_is_that_of_one_layer_alone(tiny_model: Path) -> None:
    model = load_model(str(tiny_model))
    plan, asked = chain(vocab=250)
    trials = Trials(model, plan, [asked])
    found = layer_damage(trials, asked, K3V2)
    assert found.shape == (2, 2) and (found > 0).all()
    truth = torch.log_softmax(trials.over(trials.exact(asked.rows), asked.tokens), -1)
    only_second = load_codec({"codec": "mixed", "layers": ["raw", "k3v2"]})
    assert isinstance(only_second, Mixed)
    both = trials.over([trials.restored(row, only_second) for row in asked.rows], asked.tokens)
    kl = float((truth.exp() * (truth - torch.log_softmax(both, -1))).sum(-1).mean())
    assert max(found[1]) <= kl * 1.5 and kl <= 3 * found[1].sum()


def test_the_profile_is_measured_once(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVTOOL_CACHE", str(tmp_path))
    model = load_model(str(tiny_model))
    calls = []
    real = profile.layer_damage
    monkeypatch.setattr(profile, "layer_damage", lambda *rest: calls.append(1) or real(*rest))
    first, second = (profile.layer_profile(model, "int4") for _ in range(2))
    assert len(calls) == 1 and np.array_equal(first, second) and first.shape == (2, 2)
    (kept,) = (tmp_path / "layer-profiles").iterdir()
    kept.write_text("[[1]]")
    assert np.array_equal(profile.layer_profile(model, "int4"), first) and len(calls) == 2
