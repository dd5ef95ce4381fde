"""Layers on CPU cores: near float64, and the same bits for a row in whatever company."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from kvtool.engine.compute.cpu import layers, products, team

pytestmark = pytest.mark.skipif(team.torch_team() is None, reason="torch has no workers to lend")


def linear(inputs: int, outputs: int, seed: int, bias: bool = False) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)


MADE = {
    "linear": lambda: layers.PackedLinear(linear(160, 130, 0, True)),
    "mlp": lambda: layers.GatedMLP(
        *(layers.PackedLinear(linear(*shape, 1)) for shape in ((160, 130), (160, 130), (130, 160))),
        products.SILU,
    ),
    "norm": lambda: layers.RMSNorm(nn.Parameter(torch.randn(160), requires_grad=False), 0.0),
}


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(1, 210), st.integers(1, 150), st.booleans())
def test_products_are_those_of_float64(inputs, outputs, rows, bias):
    plain = linear(inputs, outputs, inputs + outputs, bias)
    states = torch.randn(rows, inputs)
    truth = plain.double()(states.double())
    plain.float()
    torch.testing.assert_close(layers.PackedLinear(plain)(states).double(), truth, atol=1e-5, rtol=0)


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("name", MADE)
def test_a_row_has_the_same_bits_in_every_batch_and_with_any_workers(monkeypatch, name, workers):
    layer = MADE[name]()
    states = torch.randn(311, 160)
    together = layer(states)
    monkeypatch.setattr(torch, "get_num_threads", lambda: workers)
    for size in (1, 2, 3, 7, 23, 64, 65):
        assert torch.equal(torch.cat([layer(some) for some in states.split(size)]), together)


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        (products.SILU, functional.silu),
        (products.GELU_TANH, lambda gates: functional.gelu(gates, approximate="tanh")),
    ],
)
def test_activations_hold_for_all_that_a_gate_can_be(activation, function):
    gate, up, down = (linear(16, 16, seed) for seed in range(3))
    for each in (gate, up, down):
        each.weight.copy_(torch.eye(16))
    up.weight.zero_()
    up.bias = nn.Parameter(torch.ones(16), requires_grad=False)
    packed = (layers.PackedLinear(each) for each in (gate, up, down))
    gates = torch.cat([torch.linspace(-120, 120, 4800), torch.tensor([-1e30, -3e3, 3e3, 1e30] * 4)])
    out = layers.GatedMLP(*packed, activation)(gates.view(-1, 16)).flatten()
    truth = function(gates.double()).float()
    torch.testing.assert_close(out, truth, atol=1e-6, rtol=1e-6)


def test_a_norm_is_that_of_float64():
    weight = nn.Parameter(torch.randn(77), requires_grad=False)
    rows = torch.randn(2, 600, 77) * torch.logspace(-6, 6, 600)[:, None]
    exact = rows.double()
    truth = exact / (exact.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(layers.RMSNorm(weight, 1e-5)(rows).double(), truth, atol=0, rtol=2e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 70), st.integers(1, 210), st.sampled_from([1.0, 0.3]))
def test_an_embedding_reads_its_rows_from_the_panels_of_the_head(inputs, outputs, scale):
    head = linear(inputs, outputs, 3)
    tokens = torch.arange(outputs).flip(0)[None]
    out = layers.PackedEmbedding(layers.PackedLinear(head), scale)(tokens)
    assert torch.equal(out, head.weight[tokens] * scale)
    for wrong in (-1, outputs):
        with pytest.raises(AssertionError):
            layers.PackedEmbedding(layers.PackedLinear(head), scale)(torch.tensor([0, wrong]))


def test_copies_and_strided_rows_are_computed_from_their_own_memory():
    first = layers.PackedLinear(linear(48, 64, 0, True))
    second = copy.deepcopy(first)
    second.packed.zero_()
    rows = torch.randn(48, 9).t()
    assert torch.equal(second(rows), first.bias.expand(9, 64))
    torch.testing.assert_close(first(rows), functional.linear(rows, first.weight, first.bias))


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf, 1e38, 0.0])
def test_a_row_that_overflows_stays_alone(name, number):
    layer = MADE[name]()
    states = torch.randn(300, 160)
    before = layer(states)
    spoilt = states.clone()
    spoilt[[0, 7, 150]] = number
    after = layer(spoilt)
    others = torch.ones(300, dtype=torch.bool)
    others[[0, 7, 150]] = False
    assert torch.equal(after[others], before[others])
    if number != number:
        assert after[[0, 7, 150]].isnan().all()


@pytest.mark.parametrize("name", MADE)
def test_what_the_kernels_would_misread_is_refused(name):
    layer = MADE[name]()
    layer(torch.ones(2, 160))
    with pytest.raises(AssertionError):
        layer(torch.ones(2, 16))
    with pytest.raises(AssertionError):
        layer(torch.ones(2, 160, dtype=torch.bfloat16))
    layer.to(torch.bfloat16)
    with pytest.raises(AssertionError):
        layer(torch.ones(2, 160))


def test_a_norm_does_not_depend_on_what_kind_of_numbers_torch_prefers():
    rows, weight = torch.randn(3, 40) / 1000, nn.Parameter(torch.ones(40), requires_grad=False)
    before = layers.RMSNorm(weight, 1e-5)(rows)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(layers.RMSNorm(weight, 1e-5)(rows), before)
    finally:
        torch.set_default_dtype(torch.float32)
