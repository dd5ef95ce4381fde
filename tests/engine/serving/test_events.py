"""KV events: a router that follows them knows at all times what every tier holds, by HTTP and by ZeroMQ."""

import json
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
import zmq

from kvtool.cache.tiers import Tier
from kvtool.engine.serving.events import MEDIUM, KvEvents, Publisher, short
from kvtool.errors import KvtoolError

Serving = Callable[..., AbstractContextManager[Any]]
WEB = httpx.Client(timeout=60)


class Mirror:
    """What a router knows: the hashes in each medium, and each block's parent and tokens."""

    def __init__(self) -> None:
        self.held: dict[str, set[int]] = {medium: set() for medium in MEDIUM.values()}
        self.parents: dict[int, int | None] = {}
        self.tokens: dict[int, list[int]] = {}

    def apply(self, events: Iterable[dict[str, Any]]) -> None:
        for event in events:
            held, names = self.held[event["medium"]], event["block_hashes"]
            if event["type"] == "BlockRemoved":
                assert set(names) <= held, "removed what was never stored"
                held.difference_update(names)
                continue
            assert event["type"] == "BlockStored" and not held & set(names)
            size = event["block_size"]
            assert len(event["token_ids"]) == size * len(names)
            above = event["parent_block_hash"]
            for place, name in enumerate(names):
                self.parents[name] = above
                self.tokens[name] = event["token_ids"][place * size : (place + 1) * size]
                above = name
            held.update(names)

    def prompt(self, name: int) -> list[int]:
        """All tokens up to and with a block."""
        above = self.parents[name]
        return [*(self.prompt(above) if above is not None else []), *self.tokens[name]]


def truth(engine: Any) -> dict[str, set[int]]:
    pools = {Tier.DEVICE: engine.pool.device, **engine.pool.lower}
    return {
        MEDIUM[tier]: {
            short(engine.index.hash_of(node)) for node in range(pool.nodes) if pool.slot_of(node) >= 0
        }
        for tier, pool in pools.items()
    }


def test_a_follower_knows_every_tier_after_every_step(fake_engine: Callable[..., Any]) -> None:
    engine = fake_engine(device=10, host=6, disk=12)
    events = KvEvents(engine.pool, engine.index, lambda: 0.0)
    early, late = Mirror(), Mirror()
    events.listen(lambda _, happened: early.apply(happened))
    for number in range(30):
        engine.ask([number % 5] * 9 + [number % 3] * 6, 5)
        while engine.scheduler.step():
            events.poll()
            assert {name: held for name, held in early.held.items() if name in truth(engine)} == truth(engine)
        if number == 14:
            events.listen(lambda _, happened: late.apply(happened))
        if number == 20:
            engine.pool.clear()
            events.poll()
            assert not any(early.held.values())
    assert late.held == early.held and any(early.held["DISK"])
    for name in early.held["GPU"]:
        tokens = early.prompt(name)
        node = engine.index.chain(np.array(tokens, np.uint32), engine.index.root_of(0))[-1]
        assert short(engine.index.hash_of(node)) == name


def test_nothing_is_done_while_nobody_listens(fake_engine: Callable[..., Any]) -> None:
    engine = fake_engine(device=10)
    events = KvEvents(engine.pool, engine.index, lambda: 0.0)
    heard: list[Any] = []

    def listener(time: float, happened: list[Any]) -> None:
        heard.extend(happened)

    events.listen(listener)
    events.leave(listener)
    engine.ask([1] * 9, 1)
    engine.run()
    events.poll()
    assert heard == [] and not events._held


def ask(running: Any, prompt: str) -> None:
    body = {"model": running.engine.model_id, "prompt": prompt, "max_tokens": 1, "ignore_eos": True}
    assert WEB.post(f"{running.url}/v1/completions", json=body).status_code == 200


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True):
    """The fields of vLLM's event, as its subscribers declare them."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True):
    """Likewise."""

    block_hashes: list[int]
    medium: str | None


class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    """Likewise."""

    ts: float
    events: list[BlockStored | BlockRemoved]
    data_parallel_rank: int | None = None


def test_subscribers_of_vllm_can_read_what_is_published(
    serving: Serving, tiny_model: Path, tmp_path: Path
) -> None:
    endpoint = f"ipc://{tmp_path}/events"
    with serving(
        model=str(tiny_model), block_size=16, device_blocks=20, host_memory=0, kv_events=endpoint
    ) as running:
        socket = zmq.Context.instance().socket(zmq.SUB)
        socket.connect(endpoint)
        socket.setsockopt_string(zmq.SUBSCRIBE, "kv-events")
        socket.setsockopt(zmq.RCVTIMEO, 20_000)
        try:
            numbers, mirror = [], Mirror()
            ask(running, "warming up until the subscriber is known")
            while not socket.poll(200):
                WEB.post(f"{running.url}/kv/reset", json={})
                ask(running, "warming up until the subscriber is known")
            running.on_scheduler(lambda s: s.pool.clear())
            while socket.poll(300):
                socket.recv_multipart()
            for word in ("alpha ", "beta ", "gamma "):
                ask(running, word * 30)
            running.idle()
            while socket.poll(300):
                topic, number, payload = socket.recv_multipart()
                batch = msgspec.msgpack.decode(payload, type=Batch)
                numbers.append(int.from_bytes(number, "big"))
                assert topic == b"kv-events" and batch.ts > 1.7e9
                mirror.apply(msgspec.to_builtins(batch)[1])
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            device = running.engine.scheduler.pool.device
            index = running.engine.index
            held = {short(index.hash_of(n)) for n in range(device.nodes) if device.slot_of(n) >= 0}
            assert mirror.held["GPU"] == held and len(mirror.parents) > len(held), "some have left"
        finally:
            socket.close(0)


def test_http_followers_get_what_is_there_and_then_what_changes(serving: Serving, tiny_model: Path) -> None:
    with serving(model=str(tiny_model), block_size=16, device_blocks=20, host_memory=0) as running:
        ask(running, "before anybody listens " * 3)
        with httpx.Client(timeout=20) as client, client.stream("GET", f"{running.url}/kv/events") as answer:
            assert answer.headers["content-type"].startswith("application/x-ndjson")
            lines = answer.iter_lines()
            mirror = Mirror()
            mirror.apply(json.loads(next(lines))["events"])
            assert len(mirror.held["GPU"]) == len("before anybody listens " * 3) // 16
            ask(running, "while somebody listens " * 3)
            while len(mirror.held["GPU"]) < 8:
                mirror.apply(json.loads(next(lines))["events"])
            WEB.post(f"{running.url}/kv/reset", json={})
            while mirror.held["GPU"]:
                mirror.apply(json.loads(next(lines))["events"])
        for _ in range(500):
            if not running.on_scheduler(lambda _: running.engine.events._listeners):
                break
            threading.Event().wait(0.01)
        else:
            raise AssertionError("the listener stayed")


def test_an_endpoint_that_cannot_be_bound_is_an_error_of_one_line() -> None:
    with pytest.raises(KvtoolError, match="--kv-events nonsense"):
        Publisher("nonsense://x")
