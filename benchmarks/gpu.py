"""The GPU path on one card, in one command and one run: `python benchmarks/gpu.py [--out gpu.json]`.

No network, no weights: models of real shapes (Llama 3.2 1B and Llama 3.1 8B) with random weights in bf16.
Kernels are set against the card's own copy bandwidth and matrix rate, decodes against the time that
reading the weights once must take and against transformers' generate and continuous batching, first
tokens of a warm prefix (device, host, disk; raw, int8, int4) against a cold one, and the case of 20 sessions
that share 8,192 tokens with sharing on and off. Every figure is of this run; ratios are what to compare.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gpu_kernels
import torch
import transformers
from gpu_blocks import BLOCK, clear, first_tokens, ids, prefill, sessions_that_fit, shared_case, wait
from rich.console import Console
from rich.table import Table

from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.load import make_paged
from kvtool.engine.compute.model import Model, ModelConfig
from kvtool.engine.compute.runner import Chunk, Runner
from kvtool.engine.serving.capacity import CUDA_SHARE

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
            prefill(runner, ids(model, context, row), slots, 0)
        times = []
        for step in range(steps):
            chunks = [Chunk(ids(model, 1, step), context + step, slots, True) for slots in tables]
            begun = wait(model.device)
            runner.step(chunks).argmax(-1).tolist()
            times.append(time.perf_counter() - begun)
        took = statistics.median(times[2:])
        rows.append({"batch": batch, "step": took, "tokens_per_s": batch / took, "weights": weights})
        del arena, runner
    return rows


def generate_rate(module: Any, context: int, steps: int, device: torch.device) -> float:
    """transformers' generate at batch 1: tokens per second of decoding."""
    prompt = torch.randint(10, VOCAB - 10, (1, context), device=device)
    times = []
    for count in (1, 1 + steps):
        begun = wait(device)
        module.generate(prompt, max_new_tokens=count, do_sample=False, pad_token_id=0)
        times.append(wait(device) - begun)
    return steps / (times[1] - times[0])


def batching_rate(module: Any, batch: int, context: int, steps: int, device: torch.device) -> float:
    """transformers' continuous batching: decoded tokens per second, prefills taken off."""
    inputs = torch.randint(10, VOCAB - 10, (batch, context)).tolist()
    times = []
    for count in (1, 1 + steps):
        config = transformers.GenerationConfig(
            max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        begun = wait(device)
        module.generate_batch(inputs=inputs, generation_config=config)
        times.append(wait(device) - begun)
    return batch * steps / (times[1] - times[0])


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
        memory = int(torch.cuda.mem_get_info(device)[0] * CUDA_SHARE)
        case = {"shared": 8192, "own": 16_384, "answer": 2048}
        document["sessions_8B"] = sessions_that_fit(model, memory, **case)
        document["shared_8B"] = shared_case(model, memory, sessions=20, **case)
    for name, rows in document.items():
        if isinstance(rows, list):
            show(name, rows)
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
