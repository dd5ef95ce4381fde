"""Serving, measured from outside: first token by tier, and throughput of clients that share a prefix.

    python benchmarks/serve.py [--model embedded] [--prefix 1024 4096] [--clients 1 4 8] [--peer]

Each prefix is asked cold (salted: nothing can be shared), warm from the device, from host memory (after
another prompt took its place), and from disk (after a restart). Throughput sends one request per client at
once, all with the same 1,024 tokens in front; sharing off means a salt for each. `--peer` runs the same
prompts through transformers' continuous batching, with its own sharing on. One machine, one run, nothing
averaged away: every repetition is printed.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from kvtool.engine.side_by_side import server

BLOCK = 32
SHARED = 1024


def prompt(tokens: int, seed: int, vocab: int) -> list[int]:
    """Random token ids: nothing is shared by accident."""
    return [int(token) for token in np.random.default_rng(seed).integers(100, vocab, tokens)]


def first_token(
    client: httpx.Client, model: str, ids: list[int], salt: str | None = None
) -> tuple[float, int]:
    """(seconds to the first chunk, cached tokens)."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": ids,
        "max_tokens": 2,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"cache_salt": salt} if salt else {}),
    }
    started = time.perf_counter()
    first, cached = None, 0
    with client.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                first = first or time.perf_counter() - started
                usage = json.loads(line[6:]).get("usage")
                cached = usage["prompt_tokens_details"]["cached_tokens"] if usage else cached
    assert first is not None
    return first, cached


@contextmanager
def running(model: str, *options: object) -> Iterator[httpx.Client]:
    """A client of a fresh server that has answered once."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--model", model, "--block-size", str(BLOCK), *map(str, options)]
        with (
            server(arguments, Path(folder) / "log") as url,
            httpx.Client(base_url=url, timeout=900) as client,
        ):
            first_token(client, model, [1, 2, 3])
            yield client


def by_tier(model: str, length: int, vocab: int, repeats: int) -> dict[str, list[float]]:
    """Seconds to the first token of a prompt of `length` tokens, by where its blocks are."""
    found: dict[str, list[float]] = {"cold": [], "device": [], "host": [], "disk": []}
    ids, other = prompt(length, 1, vocab), prompt(length, 2, vocab)
    room = length // BLOCK + 8
    expected = (length - 1) // BLOCK * BLOCK
    with tempfile.TemporaryDirectory() as disk:
        options = ("--device-blocks", room, "--host-memory", "4GiB", "--disk", disk, "--disk-memory", "8GiB")
        with running(model, *options) as client:
            for number in range(repeats):
                found["cold"].append(first_token(client, model, ids, f"cold-{number}")[0])
            first_token(client, model, ids)
            for _ in range(repeats):
                seconds, cached = first_token(client, model, ids)
                assert cached == expected
                found["device"].append(seconds)
            for _ in range(repeats):
                first_token(client, model, other)  # takes the device's blocks
                seconds, cached = first_token(client, model, ids)
                assert cached == expected
                found["host"].append(seconds)
        for _ in range(repeats):
            with running(model, *options) as client:
                seconds, cached = first_token(client, model, ids)
                assert cached == expected, f"{cached} of {expected} tokens came back from disk"
                found["disk"].append(seconds)
    return found


async def together(url: str, bodies: Sequence[dict[str, Any]]) -> float:
    """Seconds until all of `bodies`, sent at once, are answered."""
    async with httpx.AsyncClient(base_url=url, timeout=900) as client:
        started = time.perf_counter()
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
        seconds = time.perf_counter() - started
    assert all(answer.status_code == 200 for answer in answers)
    return seconds


def throughput(model: str, clients: Sequence[int], vocab: int, answer: int) -> list[dict[str, Any]]:
    """Answer tokens per second of n clients with a shared prefix, sharing on and off."""
    rows = []
    shared = prompt(SHARED, 3, vocab)
    with running(model, "--device-memory", "4GiB") as client:
        for count in clients:
            for sharing in (True, False):
                client.post("/kv/reset", json={})
                bodies = [
                    {
                        "model": model,
                        "prompt": [*shared, *prompt(16, 100 + number, vocab)],
                        "max_tokens": answer,
                        "temperature": 0,
                        "ignore_eos": True,
                        **({} if sharing else {"cache_salt": str(number)}),
                    }
                    for number in range(count)
                ]
                seconds = asyncio.run(together(str(client.base_url), bodies))
                rows.append({"clients": count, "sharing": sharing, "seconds": seconds})
    return rows


def peer(folder: Path, count: int, vocab: int, answer: int) -> float:
    """Seconds that transformers' continuous batching takes for the same prompts."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.set_attn_implementation("sdpa")
    shared = prompt(SHARED, 3, vocab)
    inputs = [[*shared, *prompt(16, 100 + number, vocab)] for number in range(count)]
    config = transformers.GenerationConfig(max_new_tokens=answer, do_sample=False, eos_token_id=-1)
    started = time.perf_counter()
    model.generate_batch(inputs=inputs, generation_config=config)
    return time.perf_counter() - started


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--vocab", type=int, default=49000, help="token ids are drawn below this")
    parser.add_argument("--prefix", type=int, nargs="*", default=[1024, 4096])
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 4, 8])
    parser.add_argument("--answer", type=int, default=14, help="tokens of an answer")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer", action="store_true")
    arguments = parser.parse_args()
    document: dict[str, Any] = {"model": arguments.model, "first_token_seconds": {}, "throughput": []}
    for length in arguments.prefix:
        found = by_tier(arguments.model, length, arguments.vocab, arguments.repeats)
        cold = statistics.median(found["cold"])
        ratios = {tier: round(cold / statistics.median(times), 1) for tier, times in found.items()}
        document["first_token_seconds"][length] = {**found, "cold_over": ratios}
    document["throughput"] = throughput(arguments.model, arguments.clients, arguments.vocab, arguments.answer)
    if arguments.peer:
        from kvtool import embedded

        folder = embedded.model_directory() if arguments.model == "embedded" else Path(arguments.model)
        document["peer_seconds"] = {
            count: peer(folder, count, arguments.vocab, arguments.answer) for count in arguments.clients
        }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
