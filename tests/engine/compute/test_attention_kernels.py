"""Both kernels against softmax written out in float64."""

import pytest
import torch

from kvtool.engine.compute import attention


def naive(queries, keys, values, scale, mask, softcap):
    """queries [Hkv, G, T, D] -> output, log-sum-exp; float64."""
    queries, keys, values = (tensor.double() for tensor in (queries, keys, values))
    scores = torch.einsum("hgtd,hsd->hgts", queries, keys) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask.double()
    return torch.einsum("hgts,hsd->hgtd", scores.softmax(-1), values), scores.logsumexp(-1)


@pytest.mark.parametrize("kernel", ["flash", "plain", "plain in pieces"])
@pytest.mark.parametrize("masking", ["none", "causal", "mask"])
@pytest.mark.parametrize(("kv_heads", "groups", "width"), [(3, 3, 64), (1, 5, 14), (4, 1, 80)])
def test_kernels(monkeypatch, kernel, masking, kv_heads, groups, width):
    if kernel == "plain in pieces":
        monkeypatch.setattr(attention, "SCORES", 100)
    torch.manual_seed(0)
    tokens = 37
    count = tokens if masking == "causal" else 90
    queries = torch.randn(kv_heads, groups, tokens, width)
    # Keys as the arena hands them out: a transposed view of [tokens, heads, width].
    keys = torch.randn(count, kv_heads, width).transpose(0, 1)
    values = torch.randn(count, kv_heads, width).transpose(0, 1)
    hidden = torch.rand(tokens, count) < 0.5 if masking == "mask" else torch.ones(tokens, count).triu(1) > 0
    hidden[:, 0] = False
    mask = None if masking == "none" else torch.zeros(tokens, count).masked_fill(hidden, -torch.inf)
    compute = attention.flash if kernel == "flash" else attention.plain
    causal = masking == "causal"
    out, sums = compute(queries, keys, values, 0.2, None if causal else mask, causal=causal)
    truth, truth_sums = naive(queries, keys, values, 0.2, mask, None)
    torch.testing.assert_close(out.double(), truth, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(sums.double(), truth_sums, atol=2e-6, rtol=1e-5)


def test_plain_kernel_with_soft_cap_and_narrow_values():
    torch.manual_seed(1)
    queries, keys, values = torch.randn(2, 3, 7, 20) * 4, torch.randn(2, 7, 20), torch.randn(2, 7, 12)
    mask = torch.zeros(7, 7).masked_fill(torch.ones(7, 7).triu(1) > 0, -torch.inf)
    out, sums = attention.plain(queries, keys, values, 0.5, None, causal=True, softcap=3.0)
    truth, truth_sums = naive(queries, keys, values, 0.5, mask, 3.0)
    assert out.shape == (2, 3, 7, 12)
    torch.testing.assert_close(out.double(), truth, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(sums.double(), truth_sums, atol=2e-6, rtol=1e-5)
