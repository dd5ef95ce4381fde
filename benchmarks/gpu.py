"""The GPU path on one card, in one command and one run: `python benchmarks/gpu.py [--out gpu.json]`.

No network, no weights: models of real shapes (Llama 3.2 1B and Llama 3.1 8B) with random weights in bf16.
Kernels are set against the card's own copy bandwidth and matrix rate, decodes against the time that
reading the weights once must take and against transformers' generate and continuous batching, first
tokens of a warm prefix against a cold one, and the case of 20 sessions that share 8,192 tokens with
sharing on and off. Every figure is of this run; ratios are what to compare.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gpu_kernels
import numpy as np
import torch
import transformers
from rich.console import Console
from rich.table import Table

from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.load import make_paged
from kvtool.engine.compute.model import Model, ModelConfig
from kvtool.engine.compute.runner import Chunk, Runner

BLOCK = 32
BUDGET = 8192
"""Tokens of a prefill chunk."""

LLAMA = {
    "1B": {
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 8192,
        "tie_word_embeddings": True,
    },
    "8B": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
    },
}
VOCAB = 128_256
POSITIONS = 65_536


def random_module(shape: str, device: torch.device) -> Any:
    """A Llama of that shape with random weights in bf16."""
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, max_position_embeddings=POSITIONS, eos_token_id=None, **LLAMA[shape]
    )
    torch.manual_seed(0)
    with torch.device(device):
        module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return module.eval().requires_grad_(False)


def paged(module: Any, shape: str, device: torch.device) -> Model:
    """The same module over block tables."""
    layers = make_paged(module, shape)
    return Model(
        name=shape,
        module=module,
        config=ModelConfig(layers, VOCAB, POSITIONS),
        fingerprint={},
        device=device,
        dtype=torch.bfloat16,
        stop_tokens=frozenset(),
        prompt_encoder=None,
    )


def ids(count: int, seed: int) -> np.ndarray:
    """Random token ids."""
    return np.random.default_rng(seed).integers(10, VOCAB - 10, count).astype(np.uint32)


def wait(device: torch.device) -> float:
    """The clock, once the device has nothing left to do."""
    torch.cuda.synchronize(device)
    return time.perf_counter()


def prefill(runner: Runner, prompt: np.ndarray, slots: list[int], start: int) -> torch.Tensor:
    """Logits of the last token; positions before `start` are in the arena."""
    for at in range(start, len(prompt), BUDGET):
        piece = prompt[at : at + BUDGET]
        logits = runner.step([Chunk(piece, at, slots, at + len(piece) == len(prompt))])
    return logits


def decode_rates(model: Model, batches: tuple[int, ...], context: int, steps: int) -> list[dict[str, Any]]:
    """Decoded tokens per second, and the time of a step over that of reading all weights once."""
    rows = []
    weights = sum(parameter.nbytes for parameter in model.module.parameters())
    for batch in batches:
        each = (context + steps) // BLOCK + 1
        arena = Arena(model, batch * each, BLOCK)
        runner = Runner(model, arena)
        tables = [list(range(row * each, (row + 1) * each)) for row in range(batch)]
        for row, slots in enumerate(tables):
            prefill(runner, ids(context, row), slots, 0)
        times = []
        for step in range(steps):
            chunks = [Chunk(ids(1, step), context + step, slots, True) for slots in tables]
            begun = wait(model.device)
            runner.step(chunks).argmax(-1).tolist()
            times.append(time.perf_counter() - begun)
        took = statistics.median(times[2:])
        rows.append({"batch": batch, "step": took, "tokens_per_s": batch / took, "weights": weights})
        del arena, runner
    return rows


def generate_rate(module: Any, context: int, steps: int, device: torch.device) -> float:
    """transformers' generate at batch 1: tokens per second of decoding."""
    prompt = torch.from_numpy(ids(context, 0).astype(np.int64))[None].to(device)
    times = []
    for count in (1, 1 + steps):
        begun = wait(device)
        module.generate(prompt, max_new_tokens=count, do_sample=False, pad_token_id=0)
        times.append(wait(device) - begun)
    return steps / (times[1] - times[0])


def batching_rate(module: Any, batch: int, context: int, steps: int, device: torch.device) -> float:
    """transformers' continuous batching: decoded tokens per second, prefills taken off."""
    inputs = [ids(context, row).tolist() for row in range(batch)]
    times = []
    for count in (1, 1 + steps):
        config = transformers.GenerationConfig(
            max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        begun = wait(device)
        module.generate_batch(inputs=inputs, generation_config=config)
        times.append(wait(device) - begun)
    return batch * steps / (times[1] - times[0])


def first_tokens(model: Model, prefixes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Seconds to the logits of a prompt with 64 new tokens: cold, prefix on the device, in pinned memory."""
    rows = []
    for prefix in prefixes:
        length = prefix + 64
        blocks = length // BLOCK + 1
        arena = Arena(model, blocks, BLOCK)
        host = Arena(model, prefix // BLOCK, BLOCK, device="cpu")
        runner = Runner(model, arena)
        slots = list(range(blocks))
        found: dict[str, list[float]] = {"cold": [], "device": [], "host": []}
        kept = slots[: prefix // BLOCK]
        for number in range(4):
            prompt = ids(length, number)
            begun = wait(model.device)
            prefill(runner, prompt, slots, 0).argmax(-1).tolist()
            found["cold"].append(time.perf_counter() - begun)
            begun = wait(model.device)
            prefill(runner, prompt, slots, prefix).argmax(-1).tolist()
            found["device"].append(time.perf_counter() - begun)
            host.copy_from(arena, kept, kept)
            begun = wait(model.device)
            arena.copy_from(host, kept, kept)
            prefill(runner, prompt, slots, prefix).argmax(-1).tolist()
            found["host"].append(time.perf_counter() - begun)
        medians = {place: statistics.median(times[1:]) for place, times in found.items()}
        rows.append({"prefix": prefix, **medians})
        del arena, host, runner
        clear()
    return rows


def shared_case(model: Model, sessions: int, shared: int, own: int, answer: int) -> list[dict[str, Any]]:
    """Sessions with a common prefix, with sharing on and off: memory, first tokens, decode rate."""
    rows = []
    trunk = ids(shared, 0)
    per_session = -(-(own + answer) // BLOCK)
    for sharing in (True, False):
        common = shared // BLOCK
        need = sessions * per_session + common * (1 if sharing else sessions)
        free, _ = torch.cuda.mem_get_info(model.device)
        fits = min(sessions, int(free * 0.9 / (need / sessions * block_bytes(model))))
        arena = Arena(model, fits * per_session + common * (1 if sharing else fits), BLOCK)
        runner = Runner(model, arena)
        slots = iter(range(arena.slots))
        trunk_slots = [next(slots) for _ in range(common)] if sharing else []
        if sharing:
            prefill(runner, trunk, trunk_slots, 0)
        waits, tables = [], []
        for number in range(fits):
            mine = trunk_slots or [next(slots) for _ in range(common)]
            table = mine + [next(slots) for _ in range(per_session)]
            prompt = np.concatenate([trunk, ids(own, 1 + number)])
            begun = wait(model.device)
            prefill(runner, prompt, table, shared if sharing else 0).argmax(-1).tolist()
            waits.append(time.perf_counter() - begun)
            tables.append(table)
        steps = min(answer - 1, 64)
        begun = wait(model.device)
        for step in range(steps):
            chunks = [Chunk(ids(1, step), shared + own + step, table, True) for table in tables]
            runner.step(chunks).argmax(-1).tolist()
        took = time.perf_counter() - begun
        rows.append(
            {
                "sharing": sharing,
                "sessions": fits,
                "kv_bytes": arena.slots * arena.block_bytes,
                "first_token": statistics.median(waits),
                "decode_tokens_per_s": fits * steps / took,
            }
        )
        del arena, runner
        clear()
    return rows


def block_bytes(model: Model) -> int:
    """Bytes of a raw block."""
    return sum(
        2 * BLOCK * layer.kv_heads * (layer.key_dim + layer.value_dim) for layer in model.config.layers
    )


def clear() -> None:
    """Give memory back between parts."""
    gc.collect()
    torch.cuda.empty_cache()


@contextmanager
def part(name: str) -> Iterator[None]:
    """Say what is running, and how long it took."""
    begun = time.perf_counter()
    yield
    print(f"{name}: {time.perf_counter() - begun:.0f} s", file=sys.stderr)


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Rows as a table."""
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(
            *(f"{value:,.4g}" if isinstance(value, float) else str(value) for value in row.values())
        )
    Console(width=120).print(table)


def main() -> None:
    """Print tables, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.py: no CUDA device")
    device = torch.device("cuda", 0)
    card = gpu_kernels.measure_card(device)
    document: dict[str, Any] = {
        "card": torch.cuda.get_device_name(device),
        "copy_bytes_per_s": card.copy,
        "matrix_flops": card.matrix,
    }
    with part("kernels"):
        document["kernels"] = gpu_kernels.kernel_rows(card)
    clear()
    with part("1B"):
        module = random_module("1B", device)
        module.set_attn_implementation("sdpa")
        peers = {
            "generate_1": generate_rate(module, 1024, 64, device),
            "batching_32": batching_rate(module, 32, 1024, 64, device),
        }
        model = paged(module, "1B", device)
        rates = decode_rates(model, (1, 8, 32), 1024, 64)
        for row in rates:
            row["of_weight_floor"] = row["step"] / (row.pop("weights") / card.copy)
        document["decode_1B"], document["peers_1B"] = rates, [peers]
        del module, model
        clear()
    with part("8B"):
        model = paged(random_module("8B", device), "8B", device)
        document["first_token_8B"] = first_tokens(model, (2048, 8192, 32_768))
        document["shared_8B"] = shared_case(model, sessions=20, shared=8192, own=16_384, answer=2048)
    for name, rows in document.items():
        if isinstance(rows, list):
            show(name, rows)
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
