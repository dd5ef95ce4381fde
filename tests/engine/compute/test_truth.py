"""Numerical truth: the paged path against plain transformers' own cache-free forward and generate."""

import numpy as np
import pytest
import torch
import transformers

from kvtool.blocks import reusable_blocks
from kvtool.engine.compute import attention, runner
from kvtool.engine.compute.load import load_model
from kvtool.engine.compute.runner import Chunk

BLOCK = 16
LENGTHS = [5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK - 1, 3 * BLOCK, 3 * BLOCK + 1]


def assert_same(ours: torch.Tensor, truth: torch.Tensor) -> None:
    assert ours.shape == truth.shape
    assert truth.std() > 0.1, "the reference says nothing"
    torch.testing.assert_close(ours, truth, atol=1e-4, rtol=0)


def test_full_prefill(tiny, bench, make_prompt, architecture):
    pair = tiny(architecture)
    for length in LENGTHS:
        tokens = make_prompt(length)
        run = bench(pair.model, block_size=BLOCK)
        assert_same(run.prefill(tokens, run.take(length)), pair.logits(tokens))


@pytest.mark.usefixtures("path")
def test_chunked_prefill_at_any_boundaries(tiny, bench, make_prompt, architecture):
    pair = tiny(architecture)
    tokens = make_prompt(75)
    truth = pair.logits(tokens)
    for chunk in (1, 7, BLOCK, 40):
        for seed in (None, 3):
            run = bench(pair.model, block_size=BLOCK, seed=seed)
            assert_same(run.prefill(tokens, run.take(75), chunk=chunk), truth)


def test_reused_prefix_gives_the_logits_and_tokens_of_a_full_prefill(tiny, bench, make_prompt, architecture):
    """One request computes a prefix; another with the same prefix reads its blocks and computes the rest."""
    pair = tiny(architecture)
    for length in LENGTHS:
        tokens = make_prompt(length)
        run = bench(pair.model, block_size=BLOCK)
        reused = reusable_blocks(length, BLOCK)
        first = np.concatenate([tokens[: reused * BLOCK], make_prompt(9, seed=5)])
        shared = run.take(len(first))
        run.prefill(first, shared)
        start = reused * BLOCK
        own = shared[:reused] + run.take(length + 8 - start)
        assert_same(run.prefill(tokens, own, start), pair.logits(tokens)[start:])
        again = shared[:reused] + run.take(length + 8 - start)
        assert run.greedy(tokens, again, start, 8) == pair.greedy(tokens, 8)


def test_gemma3_with_windows_longer_than_a_task_has_keys(tmp_path, bench, make_prompt):
    """Its own pattern: five layers with a window, one without, each kind with a RoPE of its own."""
    config = transformers.Gemma3TextConfig(
        vocab_size=199,
        hidden_size=48,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=64,
        max_position_embeddings=2048,
        sliding_window=600,
        initializer_range=0.2,
    )
    assert config.layer_types == ["sliding_attention"] * 5 + ["full_attention"]
    torch.manual_seed(7)
    plain = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    plain.save_pretrained(tmp_path)
    tokens = make_prompt(1300)
    with torch.inference_mode():
        truth = plain(input_ids=torch.from_numpy(tokens.astype(np.int64))[None], use_cache=False).logits[0]
    model = load_model(str(tmp_path))
    assert [layer.window for layer in model.config.layers] == [600] * 5 + [None]
    for chunk in (512, 211):
        run = bench(model, slots=96)
        assert_same(run.prefill(tokens, run.take(1300), chunk=chunk), truth)


def test_whole_prompt_cached_and_only_the_last_token_recomputed(tiny, bench, make_prompt, architecture):
    pair = tiny(architecture)
    for length in LENGTHS:
        tokens = make_prompt(length)
        run = bench(pair.model, block_size=BLOCK)
        slots = run.take(length + 6)
        run.prefill(tokens, slots)
        copy = run.take(length + 6)
        filled = -(-length // BLOCK)
        run.arena.copy_from(run.arena, slots[:filled], copy[:filled])
        assert run.greedy(tokens, copy, length - 1, 6) == pair.greedy(tokens, 6)
        logits = run.runner.step([Chunk(tokens[-1:], length - 1, copy, True)])
        assert_same(logits, pair.logits(tokens)[-1:])


@pytest.mark.usefixtures("path")
def test_mixed_packed_batch_with_shared_prefixes(tiny, bench, make_prompt, architecture):
    """Decodes, chunks with and without history, and siblings over shared blocks in one forward."""
    pair = tiny(architecture)
    run = bench(pair.model, slots=160, block_size=8)
    trunk = make_prompt(48, seed=1)
    branch = np.concatenate([trunk, make_prompt(40, seed=2)])
    trunk_slots = run.take(48)
    run.prefill(trunk, trunk_slots)
    branch_slots = trunk_slots + run.take(40)
    run.prefill(branch, branch_slots, 48)
    cases = []
    for number, (base, base_slots, done, length) in enumerate(
        [
            (branch, branch_slots, 92, 93),  # decodes over the long branch
            (branch, branch_slots, 90, 91),
            (branch, branch_slots, 88, 101),  # a prefill chunk right after it
            (trunk, trunk_slots, 48, 49),  # one token after the trunk
            (trunk, trunk_slots, 50, 61),  # a chunk after a part that is its own
            (trunk[:0], [], 0, 37),  # no history
            (trunk[:0], [], 0, 1),  # a prompt of one token
            (trunk[:0], [], 19, 20),  # an unrelated decode
            (branch[:56], branch_slots[:7], 56, 60),
        ]
    ):
        tokens = np.concatenate([base, make_prompt(length - len(base), seed=10 + number)])
        slots = base_slots + run.take(length - len(base))
        if done > len(base):
            run.prefill(tokens[:done], slots, len(base))
        cases.append((tokens, done, slots))
    for batch in (cases, cases[::-1], cases[2:5], cases[:2]):
        logits = run.runner.step(
            [Chunk(tokens[done:], done, slots, len(tokens) - done) for tokens, done, slots in batch]
        )
        assert_same(logits, torch.cat([pair.logits(tokens)[done:] for tokens, done, _ in batch]))


def test_embedded_model_reuse_around_a_block_boundary(embedded_pair, bench):
    pair = embedded_pair
    text = "<|im_start|>system\nYou book flights and answer briefly.<|im_end|>\n<|im_start|>user\n" + (
        "My reservation is 4WQ150. Can I move it to Friday, and what does it cost? " * 9
    )
    ids = pair.model.encoder.tokenizer.encode(text)
    truth = pair.logits(ids[:129])  # causal: a shorter prompt's logits are its first rows
    for length in (127, 128, 129):
        tokens = ids[:length]
        run = bench(pair.model, slots=16, block_size=32)
        start = reusable_blocks(length, 32) * 32
        slots = run.take(length + 6)
        run.prefill(tokens[:start], slots, chunk=50)
        assert_same(run.prefill(tokens, slots, start), truth[start:length])
        assert run.greedy(tokens, slots, start, 6) == pair.greedy(tokens, 6)


@pytest.mark.parametrize("name", ["grouped-query llama", "mixed gemma3", "sinks gpt-oss"])
def test_the_plain_kernel_serves_where_torch_has_no_flash_kernel(tiny, bench, make_prompt, monkeypatch, name):
    """The path of other devices, run here."""
    monkeypatch.setattr(runner, "cores_for", lambda arena: None)
    monkeypatch.setattr(attention, "flash", attention.plain)
    pair = tiny(name)
    tokens = make_prompt(60)
    run = bench(pair.model, block_size=8)
    slots = run.take(60)
    truth = pair.logits(tokens)
    assert_same(run.prefill(tokens, slots, chunk=25), truth)
    assert_same(run.prefill(tokens, slots, 59), truth[59:])


def test_sixteen_bit_models_run_and_stay_close(tiny, bench, make_prompt, tmp_path):
    pair = tiny("grouped-query llama")
    folder = tmp_path / "model"
    pair.plain.save_pretrained(folder)
    model = load_model(str(folder), dtype="bf16")
    tokens = make_prompt(40)
    run = bench(model)
    slots = run.take(40)
    ours = torch.cat([run.prefill(tokens[:33], slots), run.prefill(tokens, slots, 33)])
    truth = pair.logits(tokens)
    assert model.dtype_name == "bfloat16" and run.arena.keys[0].dtype == torch.bfloat16
    assert float((ours - truth).norm() / truth.norm()) < 0.05


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("seed", [None, 1])
def test_long_history_in_runs_and_in_pieces(tiny, bench, make_prompt, seed):
    """Enough blocks that runs are read in place, gathered, and both in one table."""
    pair = tiny("grouped-query llama")
    tokens = make_prompt(401)
    run = bench(pair.model, slots=128, block_size=4, seed=seed)
    slots = run.take(401)
    run.prefill(tokens[:400], slots, chunk=100)
    if seed is None:  # move some blocks away, so that runs are broken
        for block in (0, 30, 31, 70, 99):
            moved = run.take(4)
            run.arena.copy_from(run.arena, [slots[block]], moved)
            run.arena.write_block(
                slots[block], [(k * torch.nan, v * torch.nan) for k, v in run.arena.read_block(0)]
            )
            slots[block] = moved[0]
    truth = pair.logits(tokens)
    assert_same(run.prefill(tokens, slots, 400), truth[400:])
    assert_same(run.prefill(tokens, slots, 390), truth[390:])


def test_a_step_is_deterministic_and_writes_its_own_tokens_only(tiny, bench, make_prompt):
    pair = tiny("mixed gemma3")
    run = bench(pair.model, block_size=8)
    old, new = make_prompt(30), make_prompt(50, seed=1)
    old_slots, new_slots = run.take(30), run.take(50)
    run.prefill(old, old_slots)
    run.prefill(new[:20], new_slots)
    before = [tensor.clone() for tensor in (*run.arena.keys, *run.arena.values)]
    batch = [
        Chunk(new[20:45], 20, new_slots, True),
        Chunk(old[29:], 29, old_slots, True),
    ]
    first = run.runner.step(batch)
    after = [tensor.clone() for tensor in (*run.arena.keys, *run.arena.values)]
    assert torch.equal(run.runner.step(batch), first)
    written = {new_slots[position // 8] * 8 + position % 8 for position in range(20, 45)}
    written.add(old_slots[3] * 8 + 5)
    for was, now in zip(before, after, strict=True):
        same = [
            torch.equal(a, b) or bool(a.isnan().all() and b.isnan().all())
            for a, b in zip(was.flatten(0, 1), now.flatten(0, 1), strict=True)
        ]
        changed = {token for token, equal in enumerate(same) if not equal}
        # The recomputed last token of `old` may come out with the same bits.
        assert written - {old_slots[3] * 8 + 5} <= changed <= written


def test_no_logits_are_computed_where_none_are_wanted(tiny, bench, make_prompt):
    pair = tiny("soft-capped gemma2")
    run = bench(pair.model)
    one, two = make_prompt(20), make_prompt(25, seed=1)
    slots = run.take(20), run.take(25)
    logits = run.runner.step([Chunk(one, 0, slots[0]), Chunk(two[:20], 0, slots[1])])
    assert logits.shape == (0, pair.model.config.vocab)
    logits = run.runner.step([Chunk(one[-1:], 19, slots[0]), Chunk(two[20:], 20, slots[1], 3)])
    assert_same(logits, pair.logits(two)[22:])
