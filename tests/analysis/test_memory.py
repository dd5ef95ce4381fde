"""Memory arithmetic against numbers worked out by hand."""

import json

import numpy as np
import pytest

from kvtool.analysis.build import build_workload
from kvtool.analysis.memory import describe_memory, parse_capacity, read_shape
from kvtool.errors import KvtoolError
from kvtool.requests import BlockIds, Request, Source

SMOL = {
    "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "intermediate_size": 1536, "vocab_size": 49152, "hidden_act": "silu", "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture
def model(tmp_path):
    def write(config):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return str(tmp_path)

    return write


@pytest.fixture
def workload():
    """Two sessions of two turns; the first block is common, blocks of 4 tokens."""
    rows = [("a", [0, 1]), ("b", [0, 5]), ("a", [0, 1, 2]), ("b", [0, 5, 6, 7])]
    return build_workload(
        [
            Request(
                id="", source=Source("t", i), session=name, block_ids=BlockIds(np.array(ids), 4, 4 * len(ids))
            )
            for i, (name, ids) in enumerate(rows)
        ],
        None,
    )


def test_grouped_query_bytes_and_weights(model):
    shape = read_shape(model(SMOL))
    assert shape.bytes_per_token() == 23_040, "2 x 30 layers x 3 heads x 64 x 2 bytes"
    assert shape.bytes_per_token(8) == 11_520
    assert shape.weights == pytest.approx(134.5e6, rel=0.005), "SmolLM2-135M, embeddings tied"
    assert shape.prefill().attention == 4 * 30 * 9 * 64


def test_other_names_and_nested_configs(model):
    gpt = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 10}
    assert read_shape(model(gpt)).bytes_per_token() == 2 * 2 * 4 * 16 * 2
    assert read_shape(model({"text_config": {**SMOL, "head_dim": 256}})).head_dim == 256


def test_what_is_no_model_is_named(model, tmp_path):
    with pytest.raises(KvtoolError, match="no field 'n_layer'"):
        read_shape(model({"hidden_size": 4}))
    with pytest.raises(KvtoolError, match="--model /none: no"):
        read_shape("/none")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(KvtoolError, match=r"config\.json"):
        read_shape(str(tmp_path))


def test_capacities(model, workload):
    shape = read_shape(model(SMOL))
    assert [parse_capacity(size, workload, shape) for size in ("3", "0", "0%", "9B")] == [3, 0, 0, 0]
    assert parse_capacity("50%", workload, None) == 3
    assert parse_capacity("0.1%", workload, None) == 1
    assert parse_capacity("1MiB", workload, shape) == 2**20 // (23_040 * 4)
    with pytest.raises(KvtoolError, match="bytes need --model"):
        parse_capacity("1MiB", workload, None)


@pytest.mark.parametrize("text", ["lots", "8XB", "8iB", "-8GiB", "1.5", "nan%", ""])
def test_what_is_no_capacity_is_told_the_units(text, workload):
    with pytest.raises(KvtoolError, match=f"--capacity {text}: not blocks") as error:
        parse_capacity(text, workload, None)
    assert error.value.hint == "units are B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"


def test_sessions_that_fit(model, workload):
    """At their longest 12 and 16 tokens; shared, six distinct blocks of 4 tokens instead of seven."""
    memory = describe_memory(workload, read_shape(model(SMOL)))
    assert memory["block_bytes"] == 4 * 23_040
    assert memory["blocks_per_gib"] == 2**30 // (4 * 23_040)
    assert memory["sessions_per_gib"] == pytest.approx(2 * 2**30 / (28 * 23_040), abs=1e-3)
    assert memory["sessions_per_gib_shared"] == pytest.approx(2 * 2**30 / (24 * 23_040), abs=1e-3)
