"""Rotary embedding in one pass: transformers' own bits, and only where its form is the common one."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.cohere import modeling_cohere
from transformers.models.llama import modeling_llama

from kvtool.engine.compute.cpu import team
from kvtool.engine.compute.rotary import replace_rotary, rotated

pytestmark = pytest.mark.skipif(team.torch_team() is None, reason="torch has no workers to lend")


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 70), st.sampled_from([2, 6, 64, 80, 256]), st.booleans())
def test_rotated_states_are_those_of_transformers_to_the_bit(heads, tokens, width, turned):
    torch.manual_seed(tokens)
    states = torch.randn(1, tokens, heads, width).transpose(1, 2)
    if turned:
        states = torch.randn(width, tokens, heads).permute(2, 1, 0)[None]
    cos, sin = torch.randn(2, 1, tokens, width)
    before = states.clone()
    truth, _ = modeling_llama.apply_rotary_pos_emb(states, states, cos, sin)
    assert torch.equal(rotated(states, cos, sin), truth)
    assert torch.equal(states, before)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_no_bit_depends_on_the_batch_or_the_workers(monkeypatch, workers):
    states, (cos, sin) = torch.randn(1, 9, 311, 64), torch.randn(2, 1, 311, 64)
    together = rotated(states, cos, sin)
    monkeypatch.setattr(torch, "get_num_threads", lambda: workers)
    for size in (1, 7, 200):
        parts = (
            rotated(each, *ends)
            for each, *ends in zip(states.split(size, 2), cos.split(size, 1), sin.split(size, 1), strict=True)
        )
        assert torch.equal(torch.cat(list(parts), 2), together)


def attention(code, name, **shape):
    config = getattr(code, f"{name}Config")(
        hidden_size=48, num_attention_heads=3, num_key_value_heads=1, intermediate_size=8, **shape
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    return getattr(code, f"{name}Attention")(config, 0).requires_grad_(False)


def test_a_layer_computes_the_same_bits_and_its_file_is_left_alone():
    layer = attention(modeling_llama, "Llama")
    before = modeling_llama.apply_rotary_pos_emb
    states, ends = torch.randn(1, 11, 48), tuple(torch.randn(2, 1, 11, 16))
    truth, _ = layer(states, ends, None)
    replace_rotary(layer)
    assert layer.forward.__func__.__globals__["apply_rotary_pos_emb"] is not before
    assert torch.equal(layer(states, ends, None)[0], truth)
    assert modeling_llama.apply_rotary_pos_emb is before
    assert inspect.unwrap(type(layer).forward).__globals__["apply_rotary_pos_emb"] is before


def test_batches_that_the_kernel_would_misread_are_computed_by_the_model_s_own_code():
    layer = attention(modeling_llama, "Llama")
    states, ends = torch.randn(3, 11, 48), tuple(torch.randn(2, 3, 11, 16))
    truth, _ = layer(states, ends, None)
    replace_rotary(layer)
    assert torch.equal(layer(states, ends, None)[0], truth)


def test_pairs_that_lie_side_by_side_are_left_to_the_model():
    layer = attention(modeling_cohere, "Cohere")
    replace_rotary(layer)
    assert "forward" not in vars(layer)


def test_the_embedded_model_rotates_in_one_pass(embedded_pair):
    for layer in embedded_pair.model.module.model.layers:
        assert "forward" in vars(layer.self_attn)
