"""Memory arithmetic of a model's KV cache, from its config.json alone: bytes, blocks, FLOPs."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtool import embedded
from kvtool.analysis.flops import Prefill
from kvtool.analysis.hit_rates import ratio
from kvtool.analysis.workload import Workload
from kvtool.errors import KvtoolError
from kvtool.sizes import KNOWN, parse_size


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a decoder-only model's config says. weights: of the layers and the output head, estimated."""

    name: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    weights: int

    def bytes_per_token(self, bits: float = 16) -> float:
        """K and V of one token in all layers; grouped-query heads are stored once per group."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bits / 8

    def prefill(self) -> Prefill:
        """Two FLOPs per weight and token; four per layer, query width and attended token."""
        return Prefill(linear=2.0 * self.weights, attention=4.0 * self.layers * self.heads * self.head_dim)


def read_shape(model: str) -> ModelShape:
    """The shape of `embedded` or of a model folder with a config.json. No weights are read."""
    folder = embedded.model_directory() if model == "embedded" else Path(model)
    path = folder / "config.json"
    if not path.is_file():
        raise KvtoolError(f"--model {model}: no {path}", "name a model folder, or embedded")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        config = config.get("text_config", config)
        return _shape(model, config)
    except (ValueError, AttributeError, TypeError) as error:
        raise KvtoolError(f"{path}: {error}") from error
    except KeyError as error:
        raise KvtoolError(f"{path}: no field {error}", "a decoder-only model's config is needed") from error


def _shape(name: str, config: dict[str, Any]) -> ModelShape:
    hidden = int(config["hidden_size"] if "hidden_size" in config else config["n_embd"])
    layers = int(config["num_hidden_layers"] if "num_hidden_layers" in config else config["n_layer"])
    heads = int(config["num_attention_heads"] if "num_attention_heads" in config else config["n_head"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or hidden // heads)
    inner = int(config.get("intermediate_size") or config.get("n_inner") or 4 * hidden)
    gated = config.get("hidden_act", "gelu") not in ("gelu", "gelu_new", "relu")
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    feed_forward = (3 if gated else 2) * hidden * inner
    weights = layers * (attention + feed_forward) + hidden * int(config["vocab_size"])
    return ModelShape(name, layers, heads, kv_heads, head_dim, weights)


def parse_capacity(
    text: str, workload: Workload, shape: ModelShape | None, option: str = "--capacity "
) -> int:
    """Blocks of a capacity: `1828` blocks, `5%` of the distinct blocks, `8GiB` of the model's KV."""
    if re.fullmatch(r"\d+", text):
        return int(text)
    if re.fullmatch(r"\d+(\.\d+)?%", text):
        share = float(text[:-1]) / 100
        return max(round(share * workload.distinct_blocks), 1 if share else 0)
    size = parse_size(text)
    if size is None or size < 0 or not text.strip()[-1].isalpha():
        raise KvtoolError(f"{option}{text}: not blocks (1828), a share (5%) or bytes (8GiB)", KNOWN)
    if shape is None:
        raise KvtoolError(f"{option}{text}: bytes need --model", "name a model folder, or embedded")
    return int(size / (shape.bytes_per_token() * workload.block_size))


def describe_memory(workload: Workload, shape: ModelShape) -> dict[str, Any]:
    """Bytes per token and block, blocks per GiB, and how many of the log's sessions a GiB holds at their
    longest: each with its own copy of everything, and with shared blocks kept once."""
    token = shape.bytes_per_token()
    block = token * workload.block_size
    longest: dict[int, int] = {}
    for session, tokens in zip(workload.session.tolist(), workload.prompt_tokens.tolist(), strict=True):
        longest[session] = max(longest.get(session, 0), tokens)
    own = sum(longest.values()) * token
    return {
        "model": shape.name,
        "bytes_per_token": token,
        "bytes_per_token_int8": shape.bytes_per_token(8),
        "block_bytes": block,
        "blocks_per_gib": int(2**30 // block),
        "sessions_per_gib": round(ratio(len(longest) * 2**30, own), 3),
        "sessions_per_gib_shared": round(ratio(len(longest) * 2**30, workload.distinct_blocks * block), 3),
    }
