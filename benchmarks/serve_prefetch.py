"""First tokens of sessions whose blocks lie on a cold disk, foreseen and not: is the slowest one smooth?

    python benchmarks/serve_prefetch.py [--sessions 20] [--visits 5] [--own 1536]

Agents share a system prompt; each comes back with its own context, grown by a tool result, about every
`--every` seconds. The device holds a fifth of them, host memory two fifths, the rest is in the write-back
area, whose file is dropped from the page cache all the time, as far as the system lets go of it. What the
sessions do is learned by `prewarm` from a log of other agents. Three servers, one after the other, get the
same requests at the same times: with what was learned (outlook.json), without it, and with a device that
holds all, as smooth as it gets. A slow disk: run it in a control group with `blkio.throttle.read_bps_device`.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
from serve import BLOCK, completion, load, prompt, running

VOCAB = 49000
BLOCK_BYTES = BLOCK * 30 * 2 * 3 * 64 * 4
"""30 layers of keys and values, 3 heads of 64 float32."""
GROWTH = 64
"""Tokens of a tool result."""


class Visit(NamedTuple):
    """A request: seconds from the start, session, whether it is the session's first, token ids."""

    at: float
    session: str
    first: bool
    ids: list[int]


def visits(arguments: argparse.Namespace, seed: int) -> list[Visit]:
    """All sessions' requests by their times; each comes back after `every` seconds, 20 % more or less."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(arguments.sessions):
        ids = [*prompt(arguments.shared, 1, VOCAB), *prompt(arguments.own, 1000 * seed + number, VOCAB)]
        at = arguments.cold * number
        for visit in range(arguments.visits):
            found.append(Visit(at, f"{seed}-{number}", not visit, ids))
            ids = [*ids, *prompt(GROWTH, 10_000 * seed + 100 * number + visit, VOCAB)]
            at = max(at, arguments.cold * arguments.sessions) if not visit else at
            at += arguments.every * (number / arguments.sessions if not visit else rng.uniform(0.8, 1.2))
    return sorted(found)


def shards(arguments: argparse.Namespace, folder: Path) -> Path:
    """Shards of the system prompt and outlook.json, from a log of other agents."""
    log, out = folder / "log.jsonl", folder / "shards"
    rows = [
        {"token_ids": visit.ids, "timestamp": 1.7e9 + visit.at, "session": visit.session}
        for visit in visits(arguments, 2)
    ]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    least = str(arguments.sessions)
    command = [sys.executable, "-m", "kvtool", "prewarm", "--logs", log, "--model", "embedded", "--out", out]
    subprocess.run([*map(str, command), "--block-size", str(BLOCK), "--min-requests", least], check=True)
    return out


@contextmanager
def dropped(area: Path) -> Iterator[None]:
    """The write-back area is not in the page cache: whoever reads it reads the disk."""
    over = threading.Event()

    def drop() -> None:
        while not over.wait(0.2):
            file = area / "blocks.kv"
            if file.exists():
                with file.open("rb") as opened:
                    os.fdatasync(opened.fileno())
                    os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    thread = threading.Thread(target=drop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


async def sent(url: str, asks: Sequence[Visit]) -> list[float]:
    """Seconds to the first token of each, sent at their times."""
    started = time.perf_counter()

    async def one(client: httpx.AsyncClient, visit: Visit) -> float:
        await asyncio.sleep(started + visit.at - time.perf_counter())
        begun = time.perf_counter()
        body = {**completion("embedded", visit.ids, 1), "stream": True, "user": visit.session}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    return time.perf_counter() - begun
        raise AssertionError("an answer without a token")

    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=url, timeout=900, limits=limits) as client:
        return list(await asyncio.gather(*(one(client, visit) for visit in asks)))


def measured(client: httpx.Client, asks: Sequence[Visit]) -> dict[str, Any]:
    """First tokens of those who come back, in milliseconds, and what the server says of its prefetch."""
    seconds = asyncio.run(sent(str(client.base_url), asks))
    back = [1000 * each for each, visit in zip(seconds, asks, strict=True) if not visit.first]
    found = {f"p{share}": round(float(np.percentile(back, share))) for share in (50, 90, 99)}
    stats = client.get("/kv/stats").raise_for_status().json()
    hits = {name: count for name, count in stats["counts"].items() if name.startswith("hit_tokens")}
    return {**found, "worst": round(max(back)), "requests": len(back), **hits, **stats["prefetch"]}


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--visits", type=int, default=5)
    parser.add_argument("--shared", type=int, default=256)
    parser.add_argument("--own", type=int, default=1536)
    parser.add_argument("--every", type=float, default=12.0, help="seconds between a session's requests")
    parser.add_argument("--cold", type=float, default=3.0, help="seconds between first requests")
    arguments = parser.parse_args()
    asks = visits(arguments, 3)
    longest = -(-max(len(visit.ids) for visit in asks) // BLOCK) + 1
    whole = arguments.sessions * longest
    document: dict[str, Any] = {"load": [load()], "blocks": whole, "blocks_of_a_session": longest}
    with tempfile.TemporaryDirectory() as scratch:
        learned = shards(arguments, Path(scratch))
        plain = shutil.copytree(learned, Path(scratch) / "plain")
        (plain / "outlook.json").unlink()
        ways = {
            "foreseen": (learned, whole // 5),
            "not_foreseen": (plain, whole // 5),
            "all_on_the_device": (plain, 2 * whole),
        }
        for name, (folder, device) in ways.items():
            area = Path(scratch) / name
            host = whole * 2 // 5 * BLOCK_BYTES
            options = ("--shards", folder, "--device-blocks", device, "--host-memory", host, "--disk", area)
            with dropped(area), running("embedded", *options) as client:
                document[name] = measured(client, asks)
            document["load"].append(load())
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
