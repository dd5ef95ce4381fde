"""What load_model accepts, what it refuses and how it says so, and what a fingerprint tells apart."""

import json
import os
import shutil

import pytest
import torch
import transformers

from kvtool.engine.compute import fingerprint
from kvtool.engine.compute.load import load_model
from kvtool.errors import KvtoolError

SHAPE = {
    "vocab_size": 99,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
}
ROPE = {"rope_theta": 10000.0, "factor": 4.0}


def saved(folder, config, kind=transformers.AutoModelForCausalLM.from_config):
    torch.manual_seed(0)
    kind(config).save_pretrained(folder)
    return folder


@pytest.fixture
def llama(tmp_path):
    return saved(tmp_path / "llama", transformers.LlamaConfig(**SHAPE))


def test_layers_are_what_the_model_does(tiny):
    layers = tiny("mixed gemma3").model.config.layers
    assert [layer.window for layer in layers] == [20, None, 20]
    assert {(layer.query_heads, layer.kv_heads, layer.key_dim) for layer in layers} == {(6, 1, 16)}
    assert tiny("soft-capped gemma2").model.config.layers[0].softcap == 5.0
    assert tiny("sinks gpt-oss").model.config.layers[1].sinks
    assert tiny("latent deepseek").model.config.layer_shapes == [(6, 20, 10)] * 3
    assert tiny("normed qwen3").model.stop_tokens == {1}


REFUSED = {
    "linear attention": (
        transformers.Qwen3NextConfig(
            **SHAPE | {"num_hidden_layers": 4},
            head_dim=16,
            num_experts=2,
            num_experts_per_tok=1,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
            linear_num_key_heads=2,
            linear_num_value_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
        ),
        "layer 0 is a linear_attention layer",
    ),
    "state space": (
        transformers.MambaConfig(vocab_size=99, hidden_size=48, num_hidden_layers=2, state_size=8),
        "layer 0 is a linear_attention layer",
    ),
    "recurrent": (
        transformers.RwkvConfig(vocab_size=99, hidden_size=48, num_hidden_layers=2, attention_hidden_size=48),
        "layer 0 .*RwkvBlock",
    ),
    "dynamic rope": (
        transformers.LlamaConfig(**SHAPE, rope_parameters={"rope_type": "dynamic", **ROPE}),
        "rope_type is 'dynamic'",
    ),
    "longrope": (
        transformers.Phi3Config(
            **SHAPE,
            pad_token_id=0,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "original_max_position_embeddings": 128,
                "short_factor": [1.0] * 4,
                "long_factor": [2.0] * 4,
            },
        ),
        "rope_type is 'longrope'",
    ),
    "own attention": (
        transformers.BloomConfig(vocab_size=99, hidden_size=48, n_layer=2, n_head=6),
        "BloomForCausalLM does not go through transformers' registry",
    ),
    "bidirectional": (
        transformers.BertConfig(
            vocab_size=99, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, intermediate_size=64
        ),
        "neither causal nor a sliding window",
    ),
    "heads that cannot be halved": (
        transformers.MixtralConfig(**SHAPE | {"hidden_size": 42}, num_local_experts=2),
        "plain transformers cannot compute this model: The size of tensor",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_models_that_cannot_be_served_are_refused_with_the_reason(tmp_path, case):
    config, reason = REFUSED[case]
    folder = saved(tmp_path / "model", config)
    with pytest.raises(KvtoolError, match=reason) as caught:
        load_model(str(folder))
    assert str(folder) in caught.value.message and "\n" not in str(caught.value)


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 30}
ODD_EXPERTS = {
    "mixtral": transformers.MixtralConfig(**SHAPE | {"intermediate_size": 30}, num_local_experts=4),
    "qwen2": transformers.Qwen2MoeConfig(**SHAPE, **EXPERTS, shared_expert_intermediate_size=33),
    "qwen3": transformers.Qwen3MoeConfig(**SHAPE, **EXPERTS, head_dim=16),
}


@pytest.mark.parametrize("name", ODD_EXPERTS)
def test_experts_of_a_width_that_grouped_products_cannot_read_are_computed_one_by_one(
    tmp_path, bench, make_prompt, name
):
    folder = saved(tmp_path / "model", ODD_EXPERTS[name])
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder, experts_implementation="eager").eval()
    tokens = make_prompt(50, vocab=99)
    with torch.inference_mode():
        truth = plain(input_ids=torch.from_numpy(tokens.astype("int64"))[None], use_cache=False).logits[0]
    run = bench(load_model(str(folder)))
    torch.testing.assert_close(run.prefill(tokens, run.take(50), chunk=19), truth, atol=1e-4, rtol=0)


def test_encoder_decoder_is_refused(tmp_path):
    config = transformers.T5Config(vocab_size=99, d_model=48, num_layers=1, num_heads=6, d_ff=64, d_kv=8)
    folder = saved(tmp_path / "t5", config, transformers.T5ForConditionalGeneration)
    with pytest.raises(KvtoolError, match="encoder-decoder"):
        load_model(str(folder))


def test_pickled_weights_are_never_loaded(llama):
    (llama / "model.safetensors").unlink()
    (llama / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/owned'\ntR.")
    with pytest.raises(KvtoolError, match=r"no \.safetensors weights"):
        load_model(str(llama))


def test_missing_tensors_are_not_made_up(llama):
    from safetensors.torch import load_file, save_file

    weights = load_file(llama / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, llama / "model.safetensors", {"format": "pt"})
    with pytest.raises(KvtoolError, match=r"missing keys: model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(str(llama))


def test_damaged_weights_are_the_users_error(llama):
    data = (llama / "model.safetensors").read_bytes()
    (llama / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(KvtoolError, match="llama"):
        load_model(str(llama))


def test_remote_code_is_not_run(llama):
    config = json.loads((llama / "config.json").read_text())
    config |= {"model_type": "homemade", "auto_map": {"AutoConfig": "evil.Config"}}
    (llama / "config.json").write_text(json.dumps(config))
    (llama / "evil.py").write_text("raise SystemExit('ran')")
    with pytest.raises(KvtoolError):
        load_model(str(llama))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"spec": "/nowhere"}, "--model /nowhere"),
        ({"dtype": "int3"}, "--dtype int3"),
        ({"device": "warp"}, "--device warp"),
        ({"device": "cuda:63"}, "--device cuda:63"),
    ],
)
def test_bad_options(llama, arguments, reason):
    with pytest.raises(KvtoolError, match=reason):
        load_model(**{"spec": str(llama), **arguments})


def test_a_model_without_tokenizer_says_so_when_asked(llama):
    model = load_model(str(llama))
    assert model.name == "llama" and model.fingerprint["tokenizer"] == "none"
    with pytest.raises(KvtoolError, match="no tokenizer"):
        _ = model.encoder


def test_self_check_catches_a_model_that_is_more_than_its_keys_and_values(llama, monkeypatch):
    """A model that mixes neighbouring tokens outside attention must not be served from blocks."""
    from transformers.models.llama import modeling_llama

    honest = modeling_llama.LlamaMLP.forward
    monkeypatch.setattr(
        modeling_llama.LlamaMLP, "forward", lambda self, x: honest(self, x) + x.roll(1, dims=1)
    )
    with pytest.raises(KvtoolError, match="logits are off by"):
        load_model(str(llama))


def differing(left: dict[str, str], right: dict[str, str]) -> set[str]:
    return {field for field in left if left[field] != right[field]}


def test_fingerprint_names_what_differs(llama, tmp_path):
    base = load_model(str(llama)).fingerprint
    moved = shutil.copytree(llama, tmp_path / "elsewhere")
    assert load_model(str(moved)).fingerprint == base

    assert differing(base, load_model(str(llama), dtype="bf16").fingerprint) == {"dtype", "digest"}

    config = json.loads((moved / "config.json").read_text())
    config["transformers_version"] = "0"
    (moved / "config.json").write_text(json.dumps(config))
    assert load_model(str(moved)).fingerprint == base
    config["rope_parameters"]["rope_theta"] = 5000.0
    (moved / "config.json").write_text(json.dumps(config))
    other = load_model(str(moved)).fingerprint
    assert differing(base, other) == {"config", "rope", "digest"}


def test_changed_weights_are_noticed_and_unchanged_ones_not_read_again(llama, tmp_path, monkeypatch):
    monkeypatch.setenv("KVTOOL_CACHE", str(tmp_path / "cache"))
    first = fingerprint.weights_digest(llama)
    with monkeypatch.context() as patch:
        patch.setattr(fingerprint.hashlib, "file_digest", lambda *_: pytest.fail("read again"))
        assert fingerprint.weights_digest(llama) == first
    path = llama / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    before = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as rsync and tar do
    assert fingerprint.weights_digest(llama) != first
    (tmp_path / "cache" / "weights-digests.json").write_text("{broken")
    data[-1] ^= 1
    path.write_bytes(data)
    assert fingerprint.weights_digest(llama) == first


def test_an_adapter_is_refused_and_not_left_out(llama):
    """transformers alone would serve the base without it, or load the base that the adapter names."""
    (llama / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4}))
    with pytest.raises(KvtoolError, match=r"holds an adapter \(adapter_config.json\)"):
        load_model(str(llama))
