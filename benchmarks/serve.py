"""Serving, measured from outside: first token by tier, and throughput of clients that share a prefix.

    python benchmarks/serve.py [--model embedded] [--prefix 1024 4096] [--clients 1 4 8 16]

Each prefix is asked cold (salted: nothing can be shared), warm from the device, from host memory (after
another prompt took its place), and from disk (after a restart). Throughput sends one request per client at
once, all with the same 1,024 tokens in front; sharing off means a salt for each. One machine, one run,
nothing averaged away: every repetition is printed, by the clock and in the CPU seconds that the server took,
which a busy machine changes little, with the machine's load (1.0 is one busy core).
Beside peers: serve_peers.py. The seed's figures re-enacted: serve_seed.py. Cold disks: serve_prefetch.py.
"""

import argparse
import asyncio
import json
import os
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


def completion(model: str, ids: list[int], tokens: int, salt: str | None = None) -> dict[str, Any]:
    """Body of a request for exactly `tokens` greedy tokens; vLLM takes the same."""
    return {
        "model": model,
        "prompt": ids,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        **({"cache_salt": salt} if salt else {}),
    }


def first_token(
    client: httpx.Client, model: str, ids: list[int], salt: str | None = None
) -> tuple[float, int]:
    """(seconds until the first token's chunk, cached tokens) of an answer of one token."""
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    started = time.perf_counter()
    first, cached = None, 0
    with client.stream(
        "POST", "/v1/completions", json={**completion(model, ids, 1, salt), **stream}
    ) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            if first is None and chunk["choices"]:
                first = time.perf_counter() - started
            details = (chunk.get("usage") or {}).get("prompt_tokens_details") or {}
            cached = details.get("cached_tokens") or cached
    assert first is not None, "an answer without a token"
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
            first_token(client, model, list(range(1, 2 * BLOCK + 2)), "warm-up")
            yield client


def load() -> float:
    """Processes that want to run, mean of the last minute."""
    return round(os.getloadavg()[0], 1)


def cpu() -> float:
    """CPU seconds so far of this process's descendants that live, threads that ended left out."""
    above: dict[int, int] = {}
    spent: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            above[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            tasks = (folder / "task").glob("*/schedstat")
            spent[int(folder.name)] = sum(int(task.read_text().split()[0]) for task in tasks) / 1e9
        except (OSError, ValueError):  # it ended meanwhile
            continue
    family = {os.getpid()}
    while grown := {child for child, parent in above.items() if parent in family} - family:
        family |= grown
    return sum(spent.get(each, 0.0) for each in family - {os.getpid()})


def by_tier(model: str, length: int, vocab: int, repeats: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds to the first token of a prompt of `length` tokens and one, by where its blocks are: a clock's,
    and those that the server computed."""
    found: dict[str, list[tuple[float, float]]] = {"cold": [], "device": [], "host": [], "disk": []}

    def measure(tier: str, client: httpx.Client, salt: str | None = None) -> None:
        before = cpu()
        seconds, cached = first_token(client, model, ids, salt)
        assert cached == (0 if salt else expected), f"{cached} of {expected} tokens came from {tier}"
        found[tier].append((round(seconds, 4), round(cpu() - before, 4)))

    ids, other = prompt(length + 1, 1, vocab), prompt(length + 1, 2, vocab)
    room = length // BLOCK + 8
    expected = length // BLOCK * BLOCK
    with tempfile.TemporaryDirectory() as disk:
        options = ("--device-blocks", room, "--host-memory", "4GiB", "--disk", disk, "--disk-memory", "8GiB")
        with running(model, *options) as client:
            for number in range(repeats):
                measure("cold", client, f"cold-{number}")
            first_token(client, model, ids)
            for _ in range(repeats):
                measure("device", client)
            for _ in range(repeats):
                first_token(client, model, other)  # takes the device's blocks
                measure("host", client)
        for _ in range(repeats):
            with running(model, *options) as client:
                measure("disk", client)
    return found


async def together(url: str, bodies: Sequence[dict[str, Any]]) -> float:
    """Seconds until all of `bodies`, sent at once, are answered."""
    async with httpx.AsyncClient(base_url=url, timeout=900) as client:
        started = time.perf_counter()
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
        seconds = time.perf_counter() - started
    for answer in answers:
        answer.raise_for_status()
    return seconds


def crowd(count: int, vocab: int, seed: int = 3) -> list[list[int]]:
    """Prompts of `count` clients: SHARED tokens in common and 16 of their own."""
    return [[*prompt(SHARED, seed, vocab), *prompt(16, 100 + number, vocab)] for number in range(count)]


def throughput(model: str, clients: Sequence[int], vocab: int, answer: int) -> list[dict[str, Any]]:
    """Answer tokens per second of n clients with a shared prefix, sharing on and off."""
    rows = []
    with running(model, "--device-memory", "4GiB") as client:
        for count in clients:
            for sharing in (True, False):
                client.post("/kv/reset", json={})
                bodies = [
                    completion(model, ids, answer, None if sharing else str(number))
                    for number, ids in enumerate(crowd(count, vocab))
                ]
                seconds = asyncio.run(together(str(client.base_url), bodies))
                rate = round(count * answer / seconds, 2)
                rows.append(
                    {"clients": count, "sharing": sharing, "seconds": seconds, "tokens_per_second": rate}
                )
    return rows


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--vocab", type=int, default=49000, help="token ids are drawn below this")
    parser.add_argument("--prefix", type=int, nargs="*", default=[1024, 4096])
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 4, 8, 16])
    parser.add_argument("--answer", type=int, default=14, help="tokens of an answer")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    document: dict[str, Any] = {"model": arguments.model, "load": [load()], "first_token_seconds": {}}
    for length in arguments.prefix:
        found = by_tier(arguments.model, length, arguments.vocab, arguments.repeats)
        row: dict[str, Any] = {**found}
        for number, name in enumerate(("clock", "cpu")):
            middle = {
                tier: statistics.median(each[number] for each in times) for tier, times in found.items()
            }
            row[name] = {
                "cold_over": {tier: round(middle["cold"] / seconds, 1) for tier, seconds in middle.items()},
                "disk_over_host": round(middle["disk"] / middle["host"], 2),
            }
        document["first_token_seconds"][length] = row
    document["load"].append(load())
    document["throughput"] = throughput(arguments.model, arguments.clients, arguments.vocab, arguments.answer)
    document["load"].append(load())
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
