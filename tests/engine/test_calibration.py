"""What queries look at, against a layer written out anew; measured once."""

from pathlib import Path

import numpy as np
import pytest
import torch

from kvtool.engine import calibration
from kvtool.engine.compute.load import load_model


def test_moments_are_those_of_the_first_layers_queries(tiny_model: Path) -> None:
    model = load_model(str(tiny_model))
    found = calibration.query_moments(model)
    assert [tuple(moments.shape) for moments in found] == [(2, 8, 8), (2, 8, 8)]
    text = model.encoder.tokenizer.encode(calibration.TEXT)
    tokens = torch.tensor(np.resize(text, 1024).astype(np.int64))  # the model's last position
    layer = model.module.model.layers[0]
    with torch.inference_mode():
        hidden = layer.input_layernorm(model.module.model.embed_tokens(tokens))
        queries = layer.self_attn.q_proj(hidden).reshape(1024, 4, 8).double()
    angles = torch.arange(1024)[:, None, None] * 10000.0 ** (-torch.arange(4) / 4)
    left, right = queries[..., :4], queries[..., 4:]
    turned = torch.cat(
        [left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()], -1
    )
    for head in range(2):  # two query heads share a key head
        own = turned[:, 2 * head : 2 * head + 2].reshape(-1, 8)
        torch.testing.assert_close(found[0][head].double(), own.T @ own / len(own), rtol=1e-3, atol=1e-5)


def test_a_guide_is_measured_once(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTOOL_CACHE", str(tmp_path))
    model = load_model(str(tiny_model))
    calls = []
    real = calibration.query_moments
    monkeypatch.setattr(calibration, "query_moments", lambda *rest: calls.append(1) or real(*rest))
    first, second = (calibration.query_guide(model).feedback((0, 1)) for _ in range(2))
    assert len(calls) == 1 and torch.equal(first, second)
    (kept,) = (tmp_path / "query-moments").iterdir()
    kept.write_bytes(b"damaged")
    assert torch.equal(calibration.query_guide(model).feedback((0, 1)), first) and len(calls) == 2
    monkeypatch.setenv("KVTOOL_CACHE", str(kept))  # a file: nothing can be kept there
    assert torch.equal(calibration.query_guide(model).feedback((0, 1)), first) and len(calls) == 3
