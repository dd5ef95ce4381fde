"""The seed's figures, re-enacted against running servers: shared contexts, documents, affinity, prediction.

    python benchmarks/serve_seed.py [--part sessions documents affinity prediction]

sessions: 20 clients at once, in the original with 8K shared and 16K own tokens each, here with `--shared`
and `--own`: first token, decode rate, blocks in use, of every turn. Turns after the first are the agents'
usual case: the context is there, and a tool result of 64 tokens is new. Beside sharing, with a salt for
each session (it finds its own history, as a server without shared blocks would) and for each request
(nothing is used again, as without a prefix cache). capacity: how many such sessions can take turns in a
device pool for 20 that share nothing. documents: 40 requests over one system prompt and 5 documents, 16K
tokens: tokens computed. affinity: 4 replicas, each with room for a quarter of the agents' prefixes,
requests sent where the simulator says (`most`: each prefix computed once). prediction: what kvtool's
simulator says of a recorded stream, and what a server then serves.

Memory, counts and hit rates do not depend on the weights, so all but `sessions` run a tiny random model that
knows 32K positions; times are the embedded model's.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from serve import BLOCK, completion, cpu, first_token, load, prompt, running

from kvtool.analysis.build import build_workload
from kvtool.analysis.routing import RoutingConfig, replay_replicas
from kvtool.analysis.workload import Workload
from kvtool.blocks import reusable_blocks
from kvtool.cache.policies import POLICIES
from kvtool.requests import Request, Source

VOCAB = 49000
TINY_VOCAB = 258
TURN = 64
"""Tokens that each of a session's turns after the first adds."""


def tiny_model(folder: Path) -> str:
    """A random Llama of one narrow layer, 32,768 positions, one token a byte."""
    import torch
    import transformers
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: number for number, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in ("<|im_start|>", "<|im_end|>")])
    config = transformers.LlamaConfig(
        vocab_size=TINY_VOCAB, hidden_size=16, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, intermediate_size=16, max_position_embeddings=1 << 15, bos_token_id=256,
        eos_token_id=257, pad_token_id=257,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(folder)


async def burst(url: str, bodies: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """All of `bodies` at once: first token, end (seconds from the start), cached tokens of each."""
    started = time.perf_counter()

    async def one(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, float]:
        given = {**body, "stream": True, "stream_options": {"include_usage": True}}
        first, cached = None, 0
        async with client.stream("POST", "/v1/completions", json=given) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line[6:])
                    assert "error" not in chunk, chunk
                    first = first or time.perf_counter() - started
                    if chunk.get("usage"):
                        cached = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert first is not None
        return {"first": first, "end": time.perf_counter() - started, "cached": cached}

    async with httpx.AsyncClient(
        base_url=url, timeout=1800, limits=httpx.Limits(max_connections=64)
    ) as client:
        return list(await asyncio.gather(*(one(client, body) for body in bodies)))


def stats(client: httpx.Client) -> dict[str, Any]:
    """/kv/stats."""
    found: dict[str, Any] = client.get("/kv/stats").raise_for_status().json()
    return found


def summed(times: list[dict[str, float]], answer: int) -> dict[str, float]:
    """First tokens and decode rate of a burst."""
    firsts = [each["first"] for each in times]
    gaps = [(each["end"] - each["first"]) / max(answer - 1, 1) for each in times]
    return {
        "first_token_mean": round(statistics.mean(firsts), 3),
        "first_token_last": round(max(firsts), 3),
        "decode_tokens_per_second": round(sum(1 / max(gap, 1e-9) for gap in gaps) / len(gaps), 2),
        "seconds": round(max(each["end"] for each in times), 3),
        "cached_tokens": int(sum(each["cached"] for each in times)),
    }


def sessions(arguments: argparse.Namespace) -> dict[str, Any]:
    """All turns of all sessions, with room for all: prefixes shared, each session's own, nothing kept."""
    count, answer = arguments.sessions, arguments.answer
    own = [prompt(arguments.own, 100 + number, VOCAB) for number in range(count)]
    contexts = [[*prompt(arguments.shared, 1, VOCAB), *each] for each in own]
    longest = arguments.shared + arguments.own + TURN * (arguments.turns - 1) + answer
    blocks = count * (-(-longest // BLOCK) + arguments.turns)
    options = (
        "--device-blocks",
        2 * blocks,
        "--host-memory",
        "0",
        "--max-running",
        count,
        "--max-queue",
        count,
    )
    found: dict[str, Any] = {"shared": arguments.shared, "own": arguments.own, "sessions": count}
    for name in SALTS:
        with running("embedded", *options) as client:
            client.post("/kv/reset", json={})
            turns = []
            for turn in range(arguments.turns):
                new = [[*ids, *prompt(TURN * turn, 900 + at, VOCAB)] for at, ids in enumerate(contexts)]
                before, spent = stats(client)["counts"].get("computed_tokens", 0), cpu()
                bodies = [
                    completion("embedded", ids, answer, SALTS[name](at, turn)) for at, ids in enumerate(new)
                ]
                row = summed(asyncio.run(burst(str(client.base_url), bodies)), answer)
                now = stats(client)
                row["cpu_seconds"] = round(cpu() - spent, 2)
                row["computed_tokens"] = now["counts"]["computed_tokens"] - before
                row["blocks_used"] = now["tiers"]["device"]["used"]
                row["preemptions"] = now["counts"].get("preemptions", 0)
                turns.append(row)
        found[name] = turns
    return {**found, **compared(found)}


SALTS: dict[str, Callable[[int, int], str | None]] = {
    "shared_prefix": lambda session, turn: None,
    "own_prefix": lambda session, turn: f"{session}",
    "no_reuse": lambda session, turn: f"{session}, {turn}",
}
"""Session, turn -> salt: what may be used again."""


def compared(found: dict[str, Any]) -> dict[str, Any]:
    """The other ways over the shared one: first tokens by turn and over all, blocks of the first turn."""
    ratios: dict[str, Any] = {}
    for name in ("own_prefix", "no_reuse"):
        for field in ("first_token_mean", "cpu_seconds"):
            theirs, ours = ([turn[field] for turn in found[way]] for way in (name, "shared_prefix"))
            ratios[f"{field}_of_{name}"] = {
                "turns": [round(over / under, 2) for over, under in zip(theirs, ours, strict=True)],
                "first_two": round(sum(theirs[:2]) / sum(ours[:2]), 2),
                "all": round(sum(theirs) / sum(ours), 2),
            }
    used = [found[way][0]["blocks_used"] for way in ("shared_prefix", "own_prefix")]
    return {**ratios, "memory_ratio": round(used[0] / used[1], 3)}


def all_kept(
    client: httpx.Client, model: str, asks: Sequence[tuple[list[int], str | None]], whole: int
) -> bool:
    """Whether all who ask find `whole` tokens in a second and a third round."""
    client.post("/kv/reset", json={})
    for turn in range(3):
        for ids, salt in asks:
            if first_token(client, model, [*ids, turn], salt)[1] < whole and turn:
                return False
    return True


def capacity(model: str, shared: int, own: int, pool: int) -> dict[str, Any]:
    """How many sessions can take turns with nothing computed but what is new, in one device pool.

    The pool holds `pool` sessions that share nothing. Tiers: half of it again in host memory (the usual
    rule), as the device has the blocks, and with the same bytes in int8: sessions that wait are kept there.
    """
    blocks = pool * (-(-(shared + own) // BLOCK) + 1)
    found: dict[str, Any] = {"shared": shared, "own": own, "pool_blocks": blocks}
    first = prompt(shared, 1, TINY_VOCAB - 2)
    asks = [[*first, *prompt(own, 100 + number, TINY_VOCAB - 2)] for number in range(8 * pool)]
    whole = (shared + own) // BLOCK * BLOCK
    ways: dict[str, tuple[bool, tuple[str, ...]]] = {
        "nothing_shared": (False, ("--host-memory", "0")),
        "shared_prefix": (True, ("--host-memory", "0")),
        "shared_prefix_and_host": (True, ()),
        "shared_prefix_and_int8_host": (True, ("--tier-codec", "int8")),
    }
    for name, (sharing, options) in ways.items():
        with running(model, "--device-blocks", blocks, *options) as client:
            fit, most = 1, len(asks)
            while most - fit > 1:
                middle = (fit + most) // 2
                salts = [None if sharing else f"{number}" for number in range(middle)]
                kept = all_kept(client, model, [*zip(asks, salts, strict=False)], whole)
                fit, most = (middle, most) if kept else (fit, middle)
            found[name] = fit
    for name in ways:
        found[f"{name}_over_nothing_shared"] = round(found[name] / found["nothing_shared"], 2)
    return found


def documents(model: str, system: int, document: int, question: int) -> dict[str, Any]:
    """40 questions, one after the other, each about one of 5 documents behind one system prompt."""
    head = prompt(system, 1, TINY_VOCAB - 2)
    texts = [prompt(document, 10 + number, TINY_VOCAB - 2) for number in range(5)]
    with running(model, "--device-blocks", 8192) as client:
        before = stats(client)["counts"]["computed_tokens"]
        each = []
        for number in range(40):
            ids = [*head, *texts[number * 7 % 5], *prompt(question, 100 + number, TINY_VOCAB - 2)]
            first_token(client, model, ids)
            now = stats(client)["counts"]["computed_tokens"]
            each.append(now - before)
            before = now
    tokens = system + document + question
    return {
        "prompt_tokens": tokens,
        "asked": 40 * tokens,
        "computed": sum(each),
        "ideal": system + 5 * document + 40 * question,
        "computed_by_request": each,
        "median_after_each_document_was_seen": statistics.median(each[5:]),
    }


def recorded(prompts: Sequence[list[int]]) -> Workload:
    """The stream as the simulator reads it, a request a second."""
    requests = [
        Request(f"{at}", Source("log", at), token_ids=np.array(ids, np.uint32), arrival=at * 10**6)
        for at, ids in enumerate(prompts)
    ]
    return build_workload(requests, _Ids(), BLOCK)


def affinity(model: str, agents: int, asks: int) -> dict[str, Any]:
    """Hit rates of 4 servers, by router: measured, and as the simulator says for the same assignment."""
    rng = np.random.default_rng(7)
    order = rng.permutation(np.repeat(np.arange(agents), asks))
    prompts = [
        [*prompt(1024, int(agent), TINY_VOCAB - 2), *prompt(128, 10_000 + number, TINY_VOCAB - 2)]
        for number, agent in enumerate(order)
    ]
    workload = recorded(prompts)
    blocks = agents * 1024 // BLOCK // 4 + 32
    total = sum(map(len, prompts))
    most = (len(prompts) - agents) * 1024 / total
    found: dict[str, Any] = {
        "agents": agents, "requests": len(prompts), "replica_blocks": blocks, "most": most,
    }  # fmt: skip
    limits = np.array([reusable_blocks(len(ids), BLOCK) for ids in prompts])
    with ExitStack() as stack:
        options = ("--device-blocks", blocks, "--host-memory", "0")
        clients = [stack.enter_context(running(model, *options)) for _ in range(4)]
        for routing in ("round-robin", "prefix", "cost"):
            routed = replay_replicas(
                workload, POLICIES.load("lru"), 4 * blocks, RoutingConfig(replicas=4, routing=routing)
            )
            for client in clients:
                client.post("/kv/reset", json={})
            measured = sum(
                first_token(clients[replica], model, ids)[1]
                for ids, replica in zip(prompts, routed.replica.tolist(), strict=True)
            )
            predicted = int(np.minimum(routed.matched, limits).sum()) * BLOCK
            found[routing] = {"measured": measured / total, "predicted": predicted / total}
    return found


class _Ids:
    """Stands in for an encoder: the prompts are token ids already."""

    fingerprint = "ids"

    def encode(self, requests: Sequence[Request]) -> list[Any]:
        """The ids themselves."""
        return [request.token_ids for request in requests]


def prediction(model: str, blocks: int) -> dict[str, float]:
    """A stream of 60 sessions that grow, recorded, simulated with a small pool, then served with it."""
    rng = np.random.default_rng(3)
    history = {number: prompt(640, number % 6, TINY_VOCAB - 2) for number in range(60)}
    prompts = []
    for number in range(240):
        session = int(rng.integers(0, 12)) + number // 5
        history.setdefault(session, prompt(640, session % 6, TINY_VOCAB - 2))
        new = prompt(int(rng.integers(20, 200)), 500 + number, TINY_VOCAB - 2)
        history[session] = [*history[session], *new]
        prompts.append(history[session])
    routed = replay_replicas(recorded(prompts), POLICIES.load("lru"), blocks, RoutingConfig(replicas=1))
    limits = np.array([reusable_blocks(len(ids), BLOCK) for ids in prompts])
    total = sum(map(len, prompts))
    with running(model, "--device-blocks", blocks, "--host-memory", "0") as client:
        client.post("/kv/reset", json={})
        measured = [first_token(client, model, ids)[1] for ids in prompts]
    predicted = int(np.minimum(routed.matched, limits).sum()) * BLOCK / total
    served = sum(measured) / total
    return {"predicted": predicted, "measured": served, "points_apart": abs(predicted - served) * 100}


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parts = ("sessions", "capacity", "documents", "affinity", "prediction")
    parser.add_argument("--part", nargs="*", default=parts, choices=parts)
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--shared", type=int, default=512)
    parser.add_argument("--own", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--answer", type=int, default=8, help="tokens of a session's answers")
    arguments = parser.parse_args()
    document: dict[str, Any] = {"load": [load()]}
    with tempfile.TemporaryDirectory() as folder:
        tiny = tiny_model(Path(folder)) if set(arguments.part) - {"sessions"} else ""
        run = {
            "sessions": lambda: sessions(arguments),
            "capacity": lambda: capacity(tiny, 512, 1024, 20),
            "documents": lambda: documents(tiny, 2048, 14016, 320),
            "affinity": lambda: affinity(tiny, 36, 4),
            "prediction": lambda: prediction(tiny, 400),
        }
        for part in arguments.part:
            document[part] = run[part]()
            document["load"].append(load())
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
