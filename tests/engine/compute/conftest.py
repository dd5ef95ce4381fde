"""Tiny models with random weights, plain transformers as reference, and a poisoned arena to run in."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from kvtool.engine.compute import runner
from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.load import load_model
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.runner import Chunk, Runner

VOCAB = 199
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,  # large, so that attention is sharp and logits are far from 0
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
GROUPED = {**SHAPE, "num_key_value_heads": 2}
ONE_IN_THREE_FULL = ["sliding_attention", "full_attention", "sliding_attention"]
GPT2 = {"vocab_size": VOCAB, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 512}
GPT2 |= {"initializer_range": 0.2, "bos_token_id": 0, "eos_token_id": 1}


def tiny_config(name: str) -> transformers.PreTrainedConfig:
    """Configs by what is special about them; windows are 20, so prompts of 40 tokens outgrow them."""
    tf = transformers
    match name:
        case "grouped-query llama":
            return tf.LlamaConfig(**GROUPED)
        case "multi-query llama":
            return tf.LlamaConfig(**SHAPE, num_key_value_heads=1)
        case "multi-query gpt-bigcode":
            return tf.GPTBigCodeConfig(**GPT2, multi_query=True)
        case "odd head size":
            return tf.LlamaConfig(**{**SHAPE, "hidden_size": 42}, num_key_value_heads=3, head_dim=14)
        case "sliding mistral":
            return tf.MistralConfig(**GROUPED, sliding_window=20)
        case "mixed gemma3":
            return tf.Gemma3TextConfig(
                **{**SHAPE, "num_key_value_heads": 1},
                head_dim=16,
                sliding_window=20,
                layer_types=ONE_IN_THREE_FULL,
                query_pre_attn_scalar=16,
            )
        case "soft-capped gemma2":
            return tf.Gemma2Config(
                **GROUPED,
                head_dim=16,
                sliding_window=20,
                query_pre_attn_scalar=16,
                attn_logit_softcapping=5.0,
                final_logit_softcapping=4.0,
            )
        case "normed qwen3":
            return tf.Qwen3Config(**GROUPED, head_dim=16)
        case "parallel gpt-neox":
            return tf.GPTNeoXConfig(**SHAPE)
        case "sinks gpt-oss":
            return tf.GptOssConfig(
                **GROUPED,
                head_dim=16,
                sliding_window=20,
                num_local_experts=4,
                num_experts_per_tok=2,
                layer_types=ONE_IN_THREE_FULL,
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            )
        case "latent deepseek":
            return tf.DeepseekV3Config(
                **{**SHAPE, "num_key_value_heads": 6},
                q_lora_rank=24,
                kv_lora_rank=16,
                qk_rope_head_dim=8,
                qk_nope_head_dim=12,
                v_head_dim=10,
                n_routed_experts=4,
                num_experts_per_tok=2,
                n_group=1,
                topk_group=1,
                moe_intermediate_size=32,
                first_k_dense_replace=1,
                n_shared_experts=1,
            )
    raise AssertionError(name)


ARCHITECTURES = [
    "grouped-query llama",
    "multi-query llama",
    "multi-query gpt-bigcode",
    "odd head size",
    "sliding mistral",
    "mixed gemma3",
    "soft-capped gemma2",
    "normed qwen3",
    "parallel gpt-neox",
    "sinks gpt-oss",
    "latent deepseek",
]


@dataclass
class Pair:
    """A model under test and the same weights in plain transformers, which is the reference."""

    model: Model
    plain: torch.nn.Module

    def logits(self, tokens: np.ndarray) -> torch.Tensor:
        """Reference logits [n, vocab] of one prompt, computed whole and without a cache."""
        with torch.inference_mode():
            ids = torch.from_numpy(tokens.astype(np.int64))[None]
            return self.plain(input_ids=ids, use_cache=False).logits[0].float()

    def greedy(self, tokens: np.ndarray, count: int) -> list[int]:
        """Reference continuation by transformers' own generate."""
        ids = torch.from_numpy(tokens.astype(np.int64))[None]
        out = self.plain.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return out[0, len(tokens) :].tolist()


@dataclass
class Bench:
    """A runner over an arena in which every slot that holds nothing is full of NaN."""

    model: Model
    slots: int = 64
    block_size: int = 16
    seed: int | None = 0  # None: slots in rising order, so that tables are runs
    free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.arena = Arena(self.model, self.slots, self.block_size)
        self.runner = Runner(self.model, self.arena)
        for tensor in (*self.arena.keys, *self.arena.values):
            tensor.fill_(torch.nan)
        self.free = list(range(self.slots))
        if self.seed is not None:
            random.Random(self.seed).shuffle(self.free)

    def take(self, tokens: int) -> list[int]:
        """A block table for that many tokens."""
        blocks = -(-tokens // self.block_size)
        taken, self.free = self.free[:blocks], self.free[blocks:]
        assert len(taken) == blocks
        return taken

    def prefill(self, tokens: np.ndarray, slots: list[int], start: int = 0, chunk: int = 512) -> torch.Tensor:
        """Logits of tokens [start, n), computed in chunks."""
        parts = [
            self.runner.step([Chunk(piece, at, slots, len(piece))])
            for at in range(start, len(tokens), chunk)
            for piece in [tokens[at : at + chunk]]
        ]
        return torch.cat(parts)

    def greedy(self, tokens: np.ndarray, slots: list[int], start: int, count: int) -> list[int]:
        """Continuation of a prompt of which [0, start) is in the arena; `slots` also covers the answer."""
        logits = self.runner.step([Chunk(tokens[start:], start, slots, True)])
        out = [int(logits[0].argmax())]
        while len(out) < count:
            last = np.array(out[-1:], np.uint32)
            logits = self.runner.step([Chunk(last, len(tokens) + len(out) - 1, slots, True)])
            out.append(int(logits[0].argmax()))
        return out


def prompt(length: int, seed: int = 0, vocab: int = VOCAB) -> np.ndarray:
    """Random token ids, uint32 [length]."""
    return np.random.default_rng(seed).integers(2, vocab, length).astype(np.uint32)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory):
    """Pairs by architecture, each built and loaded once."""
    root: Path = tmp_path_factory.mktemp("tiny")
    built: dict[str, Pair] = {}

    def get(name: str) -> Pair:
        if name not in built:
            folder = root / name.replace(" ", "-")
            transformers.utils.logging.disable_progress_bar()
            torch.manual_seed(7)
            transformers.AutoModelForCausalLM.from_config(tiny_config(name)).save_pretrained(folder)
            # eager: in some versions sdpa leaves out Gemma 2's soft cap
            plain = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager"
            ).eval()
            built[name] = Pair(load_model(str(folder)), plain)
        return built[name]

    return get


@pytest.fixture(scope="session")
def embedded_pair() -> Pair:
    """The embedded model and plain transformers on the same files."""
    from kvtool import embedded

    plain = transformers.AutoModelForCausalLM.from_pretrained(embedded.model_directory(), dtype=torch.float32)
    return Pair(load_model("embedded"), plain.eval())


@pytest.fixture
def bench():
    """Bench(model, slots=64, block_size=16, seed=0)."""
    return Bench


@pytest.fixture(params=["cores", "torch"])
def path(request, monkeypatch):
    """Attention by our own kernel, or by torch's operations, as where that cannot run."""
    if request.param == "torch":
        monkeypatch.setattr(runner, "cores_for", lambda arena: None)
    return request.param


@pytest.fixture
def make_prompt():
    """prompt(length, seed=0, vocab=199)."""
    return prompt


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `architecture` runs for each."""
    if "architecture" in metafunc.fixturenames:
        metafunc.parametrize("architecture", ARCHITECTURES)
