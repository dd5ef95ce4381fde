"""A server whose device blocks stay quantized: more fit, and they move between tiers as they are."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from kvtool.cache.tiers import Tier
from kvtool.engine.compute.load import load_model
from kvtool.engine.compute.model import ModelConfig
from kvtool.engine.compute.quantized_arena import QuantizedArena
from kvtool.engine.serving.capacity import plan_tiers
from kvtool.engine.serving.config import ServeConfig
from kvtool.engine.storage.codec import load_codec
from kvtool.engine.storage.layout import BlockShape
from kvtool.errors import KvtoolError

Serving = Callable[..., AbstractContextManager[Any]]
WEB = httpx.Client(timeout=60)
SIZE = 16
SYSTEM = "You answer questions about trains, planes and ships. " * 8


def ask(running: Any, text: str, **fields: Any) -> tuple[str, int]:
    """(answer, cached tokens) of a greedy completion."""
    body = {"model": running.engine.model_id, "prompt": text, "temperature": 0, "ignore_eos": True}
    document = WEB.post(f"{running.url}/v1/completions", json={**body, "max_tokens": 12, **fields}).json()
    return document["choices"][0]["text"], document["usage"]["prompt_tokens_details"]["cached_tokens"]


def codes(running: Any, nodes: list[int]) -> list[torch.Tensor]:
    """What the device has of some blocks."""

    def read(scheduler: Any) -> list[torch.Tensor]:
        arena = running.engine.store._device
        slots = [scheduler.pool.device.slot_of(node) for node in nodes]
        return [tensor for blocks in arena.codes(slots) for tensor in blocks.tensors()]

    found: list[torch.Tensor] = running.on_scheduler(read)
    return found


def test_answers_are_those_of_a_raw_device_and_of_a_miss(serving: Serving, tiny_model: Path) -> None:
    questions = [f"{SYSTEM} Question {number}: where and when?" for number in range(4)]
    answers = {}
    for codec in ("raw", "int8"):
        with serving(
            model=str(tiny_model), block_size=SIZE, device_blocks=200, device_codec=codec
        ) as running:
            misses = [ask(running, text, cache_salt=f"{n}") for n, text in enumerate(questions)]
            hits = [ask(running, text, cache_salt=f"{n}") for n, text in enumerate(questions)]
            assert all(cached == 0 for _, cached in misses)
            assert all(cached >= 25 * SIZE for _, cached in hits)
            answers[codec] = [text for text, _ in misses]
            assert [text for text, _ in hits] == answers[codec]
            assert isinstance(running.engine.store._device, QuantizedArena) == (codec == "int8")
            running.idle()
    # Random weights: near the end of an answer tokens are nearly as likely as each other.
    assert [text[:6] for text in answers["int8"]] == [text[:6] for text in answers["raw"]]


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_codes_survive_host_disk_and_a_restart(
    serving: Serving, tiny_model: Path, tmp_path: Path, codec: str
) -> None:
    options = {"model": str(tiny_model), "block_size": SIZE, "device_blocks": 40, "device_codec": codec}
    options |= {"host_memory": 20 * 4096, "disk": tmp_path / "disk", "disk_memory": 1 << 21}
    nodes = [3, 4, 20]

    def always_load(running: Any) -> None:
        running.engine.scheduler.rates.worth_loading = len
        running.engine.scheduler.rates.patience = lambda blocks: 60.0

    def push_out(running: Any) -> None:
        for other in range(6):
            ask(running, f"{other} " * 250, max_tokens=1)
        assert running.on_scheduler(lambda s: [s.pool.tier_of(node) for node in nodes])[0] > Tier.DEVICE

    with serving(**options) as running:
        always_load(running)
        ask(running, SYSTEM)
        before = codes(running, nodes)
        hashes = [running.engine.index.hash_of(node) for node in nodes]
        for _ in range(2):
            push_out(running)
            assert ask(running, SYSTEM)[1] >= 25 * SIZE
            for old, new in zip(before, codes(running, nodes), strict=True):
                assert torch.equal(old, new)
        running.idle()
    with serving(**options) as running:
        always_load(running)
        assert ask(running, SYSTEM)[1] >= 25 * SIZE
        again = [running.engine.index.find(name) for name in hashes]
        for old, new in zip(before, codes(running, again), strict=True):
            assert torch.equal(old, new)
        running.idle()


def test_many_prompts_share_few_raw_slots(serving: Serving, tiny_model: Path) -> None:
    """More first blocks than raw slots: those used longest ago are squeezed, and still read as they are."""
    texts = [f"{number} is a number of which there is much to say" for number in range(40)]
    options = {"device_blocks": 300, "max_running": 1, "chunk_tokens": SIZE, "device_codec": "int8"}
    with serving(model=str(tiny_model), block_size=SIZE, **options) as running:
        arena = running.engine.store._device
        assert arena.raw_slots < len(texts)
        found = [ask(running, text, max_tokens=2) for text in texts]
        again = [ask(running, text, max_tokens=2) for text in texts]
        assert all(cached >= SIZE for _, cached in again)
        stats = WEB.get(f"{running.url}/kv/stats").json()["counts"]
        assert stats["squeezed_blocks"] == arena.crowded_out >= len(texts) - arena.raw_slots
        same = sum(new == old for (new, _), (old, _) in zip(again, found, strict=True))
        assert same >= 38, "another block's keys would give other answers"
        running.idle()


@pytest.mark.parametrize(("codec", "times"), [("int8", 1.8), ("k8v4", 2.3), ("int4", 3.2)])
def test_the_same_memory_holds_more_blocks(tiny_model: Path, codec: str, times: float) -> None:
    """Of Llama 3.1 8B in bf16, without its weights."""
    model = load_model(str(tiny_model), "cpu", "bfloat16")
    (layer, *_) = model.config.layers
    layers = (replace(layer, kv_heads=8, key_dim=128, value_dim=128),) * 32
    big = replace(model, config=ModelConfig(layers, 128_256, 131_072))
    shape = BlockShape.of_layers(32, "bfloat16", big.config.layer_shapes)
    memory = 40 << 30
    counts = {}
    for name in ("raw", codec):
        config = ServeConfig(device_codec=name, device_memory=memory)
        tiers = plan_tiers(config, big, shape, load_codec({"codec": name}))
        raw = 2 * shape.elements
        assert 0.99 * memory < tiers.device * tiers.block_bytes + tiers.raw * raw <= memory
        counts[name] = tiers.device
    assert counts[codec] > times * counts["raw"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device_codec": "int8", "tier_codec": "int4"}, "--tier-codec int4: blocks of the device are int8"),
        ({"device_codec": "int4", "block_size": 48}, "--device-codec int4: blocks of 48 tokens"),
        ({"device_codec": "int4", "block_size": 8}, "--device-codec int4: blocks of 8 tokens"),
    ],
)
def test_what_cannot_be_is_refused(
    serving: Serving, tiny_model: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(KvtoolError, match=message), serving(model=str(tiny_model), **options):
        pass
