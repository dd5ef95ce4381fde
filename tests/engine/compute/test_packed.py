"""Packed linear layers: the same products, the same parameters, and no second copy of them."""

import copy

import pytest
import torch
from torch import nn

from kvtool.engine.compute.cost import prefill_of
from kvtool.engine.compute.cpu import layers, team
from kvtool.engine.compute.packed import FEW, PackedLinear, TiedHead, pack, padded

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available() or torch.ops.mkldnn._is_mkldnn_acl_supported(),
    reason="without oneDNN for x86 nothing is packed",
)
CPU = torch.device("cpu")


def linear(inputs: int, outputs: int, bias: bool) -> nn.Linear:
    torch.manual_seed(inputs * outputs)
    return nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)


@needs_onednn
@pytest.mark.parametrize("packed_by", [PackedLinear, layers.PackedLinear])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (14, 3), (48, 199), (96, 64)])
def test_a_packed_layer_is_the_layer(packed_by, inputs, outputs, bias):
    plain = linear(inputs, outputs, bias)
    packed = packed_by(plain)
    assert torch.equal(packed.weight, plain.weight)
    for shape in ((0,), (1,), (2,), (7,), (1, 33), (2, 3, 5)):
        rows = torch.randn(*shape, inputs)
        torch.testing.assert_close(packed(rows), plain(rows), atol=1e-5, rtol=0)
    strided = torch.randn(inputs, 9).t()
    torch.testing.assert_close(packed(strided), plain(strided), atol=1e-5, rtol=0)


@pytest.mark.parametrize("bias", [False, True])
def test_a_tied_head_is_the_layer(bias):
    plain = linear(48, 199, bias)
    head = TiedHead(plain)
    assert head.weight is plain.weight
    for rows in (0, 1, 2, FEW, FEW + 1):
        states = torch.randn(1, rows, 48)
        out = head(states)
        assert out.is_contiguous()
        torch.testing.assert_close(out, plain(states), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "name", ["grouped-query llama", "parallel gpt-neox", "sinks gpt-oss", "latent deepseek"]
)
def test_every_linear_layer_is_packed_but_experts_and_a_tied_head(tiny, name):
    pair = tiny(name)
    kinds = {path: type(part) for path, part in pair.model.module.named_modules()}
    for path, part in pair.plain.named_modules():
        if type(part) is nn.Linear:
            assert kinds[path] is (nn.Linear if "expert" in path else layers.PackedLinear)
    for path, part in pair.plain.named_modules():
        if type(part) is nn.Linear:
            assert torch.equal(pair.model.module.get_submodule(path).weight, part.weight)


def tied(embedding: nn.Embedding) -> nn.Module:
    """A model of two layers that share their weight."""
    module = nn.Module()
    module.embedding, module.head = embedding, linear(48, 199, False)
    module.head.weight = embedding.weight
    return module.requires_grad_(False)


class Scaled(nn.Embedding):
    embed_scale = torch.tensor(6.5)

    def forward(self, tokens):
        return super().forward(tokens) * self.embed_scale


class Mirrored(nn.Embedding):
    def forward(self, tokens):
        return super().forward(198 - tokens)


@pytest.mark.parametrize("kind", [nn.Embedding, Scaled])
def test_an_embedding_looks_up_what_its_head_holds(kind):
    module = tied(kind(199, 48))
    plain, tokens, states = copy.deepcopy(module), torch.tensor([[0, 198, 47, 48, 191]]), torch.randn(9, 48)
    assert pack(module, CPU, torch.float32)
    assert module.embedding.packed is module.head.packed and len(list(module.parameters())) == 1
    assert torch.equal(module.embedding(tokens), plain.embedding(tokens))
    torch.testing.assert_close(module.head(states), plain.head(states), atol=1e-5, rtol=0)


def test_an_embedding_that_does_more_keeps_its_weight():
    module = tied(Mirrored(199, 48))
    assert pack(module, CPU, torch.float32)
    assert type(module.embedding) is Mirrored and type(module.head) is TiedHead
    assert module.head.weight is module.embedding.weight


def test_a_tied_head_and_its_embedding_hold_one_weight(embedded_pair):
    module = embedded_pair.model.module
    assert type(module.lm_head) is layers.PackedLinear
    assert module.lm_head.packed is module.model.embed_tokens.packed
    sizes = [each.numel() for each in embedded_pair.plain.parameters()]
    assert [each.numel() for each in module.parameters()] == sizes
    # 30 layers, counted by hand: q and o, k and v, gate and up and down, two norms; a last norm.
    weights = 30 * (2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576 + 2 * 576) + 576
    assert prefill_of(embedded_pair.model).linear == 2 * weights


def test_without_kernels_and_onednn_the_model_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(team, "torch_team", lambda: None)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    module = nn.Sequential(linear(4, 4, True), nn.Sequential(linear(4, 4, False)))
    assert not pack(module, CPU, torch.float32)
    assert [type(part) for part in module.modules() if not list(part.children())] == [nn.Linear] * 2


def test_rows_are_filled_up_to_few_numbers_a_little_above_them():
    sizes = [padded(rows) for rows in range(1, 545)]
    assert sizes[16] == 17 and sizes[32] == 40 and sizes[511] == 512
    assert all(rows <= size <= 1.25 * rows for rows, size in enumerate(sizes, 1))
    assert all(padded(size) == size for size in sizes)
    assert len(set(sizes)) < 60
