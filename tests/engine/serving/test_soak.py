"""Mixed traffic for a while: answers stay those of a server without a cache, nothing leaks."""

import gc
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from kvtool.engine.storage.outlook import Expected, Outlook

Serving = Callable[..., AbstractContextManager[Any]]
TRUNKS = ["the red house by the river ", "a blue boat on the lake ", "some green hills far away "]


def body(number: int) -> dict[str, Any]:
    """One of 60 requests; a trunk of one of three prefixes, a length and an end of its own."""
    trunk = TRUNKS[number % 3] * (1 + number % 4)
    return {
        "model": "tiny-llama",
        "prompt": f"{trunk}{number % 20} {'z' * (number % 9)}",
        "max_tokens": 1 + number % 13,
        "temperature": 0,
        "ignore_eos": True,
    }


class Mirror:
    """Counts the blocks of all tiers by the events alone."""

    held = 0

    def follow(self, _: float, events: list[dict[str, Any]]) -> None:
        for event in events:
            change = len(event["block_hashes"])
            self.held += change if event["type"] == "BlockStored" else -change


def soak(serving: Serving, model: Path, disk: Path, seconds: float) -> str:
    """What came of it, in words: requests answered, memory at the start, in the middle, at the end."""
    with serving(model=str(model), block_size=8, device_blocks=200) as calm, httpx.Client(timeout=60) as web:
        url = f"{calm.url}/v1/completions"
        expected = [
            web.post(url, json={**body(n), "cache_salt": str(n)}).json()["choices"][0]["text"]
            for n in range(60)
        ]
        block = calm.engine.tiers.block_bytes
    options = {
        "block_size": 8,
        "device_blocks": 34,
        "host_memory": 12 * block,
        "disk": disk,
        "disk_memory": 60 * block,
        "max_running": 5,
        "max_queue": 4,
    }
    mirror = Mirror()
    failures: list[str] = []
    answered = [0]
    with serving(model=str(model), **options) as running:
        url = f"{running.url}/v1/completions"
        running.engine.scheduler.foresight._outlook = Outlook({}, Expected(None, 1.0, 0.2, 0.6))
        running.on_scheduler(lambda _: running.engine.events.listen(mirror.follow))
        until = time.monotonic() + seconds
        latest = until + 60  # a machine under load may take longer to get to a foreseen fetch

        def goes_on() -> bool:
            now = time.monotonic()
            return now < until or (now < latest and not running.counts.get("prefetched_foreseen"))

        def client(seed: int) -> None:
            draw = random.Random(seed)
            with httpx.Client(timeout=60) as web:
                while goes_on():
                    number = draw.randrange(60)
                    if draw.random() < 0.1:
                        try:
                            web.post(url, json={**body(number), "max_tokens": 90}, timeout=0.02)
                        except httpx.TimeoutException:
                            continue
                    headers = {"x-session-id": f"s{number}", "x-session-ttl": str(number % 3 / 10)}
                    answer = web.post(url, json=body(number), headers=headers)
                    if answer.status_code == 429:
                        time.sleep(0.01)
                    elif answer.status_code != 200:
                        failures.append(answer.text)
                    elif answer.json()["choices"][0]["text"] != expected[number]:
                        failures.append(f"request {number}: {answer.text}")
                    else:
                        answered[0] += 1

        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        process = psutil.Process(os.getpid())
        start = process.memory_info().rss
        time.sleep(seconds / 2)
        gc.collect()
        half = process.memory_info().rss
        for thread in threads:
            thread.join()
        gc.collect()
        end = process.memory_info().rss
        running.idle()
        counts = running.counts
        running.on_scheduler(lambda s: s.kept.clear())
        assert running.on_scheduler(lambda _: mirror.held) == running.on_scheduler(
            lambda s: sum(
                int((pool.state.owner >= 0).sum()) for pool in (s.pool.device, *s.pool.lower.values())
            )
        )
        assert running.on_scheduler(lambda s: s.pool.device.available()) == 34
        assert len(running.engine.index) <= running.engine.index.limit
    assert failures == []
    assert answered[0] > 20 and counts["hit_tokens_device"] > 0 and counts["hit_tokens_host"] > 0
    assert counts["bad_blocks"] == 0 and counts["prefetched_foreseen"] > 0
    memory = ", ".join(f"{rss >> 20} MiB" for rss in (start, half, end))
    assert end - half < 64 << 20, f"memory grew in the second half: {memory}"
    return f"{answered[0]:,} requests answered; memory {memory}; {dict(counts)}"


def test_mixed_traffic_for_seconds(serving: Serving, tiny_model: Path, tmp_path: Path) -> None:
    soak(serving, tiny_model, tmp_path / "disk", 5.0)


@pytest.mark.slow
def test_mixed_traffic_for_a_minute(serving: Serving, tiny_model: Path, tmp_path: Path) -> None:
    soak(serving, tiny_model, tmp_path / "disk", 60.0)


@pytest.mark.soak
def test_mixed_traffic_for_half_an_hour(serving: Serving, tiny_model: Path, tmp_path: Path) -> None:
    print(soak(serving, tiny_model, tmp_path / "disk", 1800.0))
