"""Fused layers take over only what they compute as well."""

import copy

import pytest
import torch
from torch import nn

from kvtool.engine.compute import fused as onednn
from kvtool.engine.compute.cpu import layers, team
from kvtool.engine.compute.fused import fuse
from kvtool.engine.compute.packed import pack


@pytest.fixture(params=["cores", "oneDNN"])
def ours(request, monkeypatch):
    """Whether our own kernels compute."""
    if request.param == "oneDNN":
        if not torch.backends.mkldnn.is_available() or torch.ops.mkldnn._is_mkldnn_acl_supported():
            pytest.skip("no oneDNN for x86")
        monkeypatch.setattr(team, "torch_team", lambda: None)
    return request.param == "cores"


class MLP(nn.Module):
    """As in most models; `factor` is what no fused form has."""

    def __init__(self, activation: nn.Module, bias: bool, factor: float = 1.0) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(24, 40, bias=bias)
        self.up_proj = nn.Linear(24, 40, bias=bias)
        self.down_proj = nn.Linear(40, 24, bias=bias)
        self.activation = activation
        self.factor = factor

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.factor * self.down_proj(self.activation(self.gate_proj(rows)) * self.up_proj(rows))


class WeightRMSNorm(nn.Module):
    """Llama's norm, or Gemma's, which adds 1 to the weight."""

    def __init__(self, added: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 2, 24))
        self.eps = 1e-3
        self.added = added

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight + self.added) * (rows * scale) if self.added else self.weight * (rows * scale)


def fused(layer: nn.Module) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """What `fuse` makes of a layer, and both layers' results for the same rows."""
    rows = torch.randn(2, 7, 24)
    model = nn.Sequential(layer).requires_grad_(False)
    before = model(rows)
    assert pack(model, torch.device("cpu"), torch.float32)
    fuse(model, exact=True)
    return model[0], model(rows), before


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", [nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.ReLU()], ids=str)
def test_a_gated_mlp_keeps_its_activation(ours, activation, bias):
    torch.manual_seed(1)
    layer, after, before = fused(MLP(activation, bias))
    known = str(activation) in ("SiLU()", "GELU(approximate='tanh')")
    assert type(layer) is (onednn.GatedMLP if not ours else layers.GatedMLP if known else MLP)
    torch.testing.assert_close(after, before, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("size", [0.02, 1, 50, 3000])
@pytest.mark.parametrize("activation", [nn.GELU(), nn.ReLU(), nn.Hardswish()], ids=str)
def test_a_large_or_small_weight_does_not_hide_an_activation(ours, activation, size):
    torch.manual_seed(1)
    layer = MLP(activation, bias=False)
    layer.gate_proj.weight.data.mul_(size)
    kept = copy.deepcopy(layer)
    model, _, _ = fused(layer)
    rows = torch.randn(2, 700, 24) / size
    torch.testing.assert_close(model(rows), kept(rows), atol=1e-6 / size, rtol=1e-4)


@pytest.mark.parametrize("layer", [MLP(nn.Mish(), False), MLP(nn.SiLU(), True, factor=1.001)])
def test_an_mlp_that_computes_something_else_stays(ours, layer):
    layer = copy.deepcopy(layer)
    kept, after, before = fused(layer)
    assert kept is layer
    torch.testing.assert_close(after, before)


def test_a_norm_is_replaced_only_if_it_is_the_same(ours):
    layer, after, before = fused(WeightRMSNorm(0))
    assert type(layer) is (layers.RMSNorm if ours else onednn.RMSNorm)
    torch.testing.assert_close(after, before, atol=0, rtol=1e-6 if ours else 0)
    gemma = WeightRMSNorm(1)
    layer, after, before = fused(gemma)
    assert layer is gemma and torch.equal(after, before)


@pytest.mark.parametrize("added", [0, 1])
def test_where_bits_may_differ_a_norm_is_replaced_if_only_rounding_does(added):
    """As transformers computes it in bfloat16: Llama's is rounded twice, Gemma's adds 1 to its weight."""

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 2, 640).bfloat16())
            self.eps = 1e-3

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            wide = rows.float()
            wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
            return (self.weight + added) * wide.to(rows.dtype)

    class FloatRMSNorm(Norm):
        pass

    layer = FloatRMSNorm()
    rows = torch.randn(5, 640).bfloat16()
    for exact in (True, False):
        model = nn.Sequential(layer).requires_grad_(False)
        fuse(model, exact)
        assert (type(model[0]) is onednn.RMSNorm) == (added == 0 and not exact)
        torch.testing.assert_close(model(rows), layer(rows), rtol=2**-6, atol=0)


def test_the_embedded_model_is_fused_throughout(embedded_pair):
    kinds = [type(part) for part in embedded_pair.model.module.modules()]
    assert kinds.count(layers.GatedMLP) == 30 and kinds.count(layers.RMSNorm) == 61
