"""Host and disk tiers that keep blocks encoded: more of them fit, and none is encoded twice."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from click.testing import CliRunner

from kvtool.cache.policies import POLICIES
from kvtool.cache.tiers import Tier, TieredPool
from kvtool.cli import main
from kvtool.engine.storage.codec import decode_block, encode_block, encode_blocks, load_codec
from kvtool.engine.storage.codecs import CODECS
from kvtool.engine.storage.host import EncodedHost

Serving = Callable[..., AbstractContextManager[Any]]
WEB = httpx.Client(timeout=60)
SIZE = 16
SYSTEM = "You answer questions about trains, planes and ships. " * 8  # as in branching_log
LOSSY = sorted({"int8", "int4"} & set(CODECS.names()))


def ask(running: Any, question: str, **fields: Any) -> tuple[str, int]:
    """(answer, cached tokens) of a greedy request that begins as the log's do."""
    body = {
        "model": running.engine.model_id,
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 2,
        "ignore_eos": True,
        **fields,
    }
    document = WEB.post(f"{running.url}/v1/chat/completions", json=body).json()
    cached = document["usage"]["prompt_tokens_details"]["cached_tokens"]
    return document["choices"][0]["message"]["content"], cached


def fill(running: Any, text: str) -> None:
    """A prompt that shares nothing and takes most of the device."""
    body = {"model": running.engine.model_id, "prompt": text * 120, "max_tokens": 1, "ignore_eos": True}
    assert WEB.post(f"{running.url}/v1/completions", json=body).status_code == 200


def always_load(running: Any) -> None:
    """This model computes faster than it reads; here it shall read."""
    running.engine.scheduler.rates.worth_loading = len
    running.engine.scheduler.rates.patience = lambda blocks: 60.0


def device_block(running: Any, node: int) -> torch.Tensor:
    def read(scheduler: Any) -> torch.Tensor:
        device = running.engine.store._device
        layers = device.read_block(scheduler.pool.device.slot_of(node))
        return torch.cat([tensor.flatten() for pair in layers for tensor in pair])

    found: torch.Tensor = running.on_scheduler(read)
    return found


@pytest.mark.parametrize("codec", LOSSY)
def test_a_block_comes_back_as_its_codec_gives_it_and_is_encoded_once(
    serving: Serving, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    """Device -> host -> disk -> device -> gone -> device: one encoding, whatever the tiers do."""
    encoded: list[bytes] = []

    def counted(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        data, faults = encode_blocks(*arguments)
        encoded.extend(row.tobytes() for row in data.numpy())
        return data, faults

    monkeypatch.setattr("kvtool.engine.storage.coded.encode_blocks", counted)
    options = {"model": str(tiny_model), "block_size": SIZE, "device_blocks": 40, "tier_codec": codec}
    with serving(**options, host_memory=20 * 4096, disk=tmp_path / "disk", disk_memory=1 << 20) as running:
        monkeypatch.setattr(running.engine.scheduler.pool, "back_up", lambda most: [])
        always_load(running)
        ask(running, "Where?", cache_salt="a")
        made = load_codec({"codec": codec})
        shape = running.engine.identity.shape
        (node, *_) = running.on_scheduler(lambda s: [n for n in running.engine.index.known() if n == 3])
        exact = device_block(running, node)
        block = running.on_scheduler(
            lambda s: running.engine.store._device.read_block(s.pool.device.slot_of(node))
        )
        data = encode_block(made, shape, block, False)
        expected = torch.cat(
            [t.flatten() for pair in decode_block(made, shape, bytearray(data), False) for t in pair]
        )
        seen = []
        for turn in range(3):
            for other in range(6):
                fill(running, f"{turn} {other} ")
            assert running.on_scheduler(lambda s: s.pool.tier_of(node)) > Tier.DEVICE
            _, cached = ask(running, "Where?", cache_salt="a")
            assert cached >= 20 * SIZE
            seen.append(device_block(running, node))
        for found in seen:
            assert torch.equal(found, expected)
        assert not torch.equal(exact, expected)
        assert encoded.count(data) == 1, "encoded when it left the device, and never again"
        running.idle()


def test_host_memory_holds_more_blocks_when_they_are_encoded(serving: Serving, tiny_model: Path) -> None:
    options = {"model": str(tiny_model), "block_size": SIZE, "device_blocks": 40, "host_memory": 100_000}
    capacity = {}
    for codec in ("raw", "int8"):
        with serving(**options, tier_codec=codec) as running:
            tiers = running.engine.tiers
            capacity[codec] = tiers.host
            assert tiers.host == 100_000 // tiers.slot_bytes
            stats = WEB.get(f"{running.url}/kv/stats").json()
            assert stats["tier_codec"] == codec and stats["tiers"]["host"]["capacity"] == tiers.host
    assert capacity["int8"] >= 2 * capacity["raw"]


def test_a_shards_int8_block_keeps_its_bytes_and_a_raw_one_is_not_encoded(
    serving: Serving, tiny_model: Path, branching_log: Path, tmp_path: Path
) -> None:
    for codec in ("int8", "raw"):
        folder = tmp_path / codec
        arguments = ["--logs", branching_log, "--model", tiny_model, "--block-size", SIZE, "--out", folder]
        result = CliRunner().invoke(
            main,
            ["prewarm", *map(str, arguments), "--codec", codec, "--protect", "none"],
            catch_exceptions=False,
        )
        assert result.exit_code == 0, result.output
        with serving(
            model=str(tiny_model), shards=folder, device_blocks=40, host_memory=1 << 20, tier_codec="int8"
        ) as running:
            always_load(running)
            row = next(row for row in running.engine.shards.rows if row.depth == 3)
            host = running.engine.store._host
            assert isinstance(host, EncodedHost)

            def fetch(scheduler: Any, row: Any = row, running: Any = running) -> int:
                return int(scheduler.fetch(running.engine.store.chain_to(row.hash)))

            assert running.on_scheduler(fetch) == (4 if codec == "int8" else 0), "raw does not fit a slot"
            while running.on_scheduler(lambda s: s.reading):
                pass
            node = running.engine.index.find(row.hash)
            slot = running.on_scheduler(
                lambda s, node=node: s.pool.lower[Tier.HOST].slot_of(node)  # type: ignore[misc]
            )
            stored = bytes(running.engine.shards.read_bytes(row))
            assert (slot >= 0) == (codec == "int8")
            if slot >= 0:
                assert bytes(host.encoded(slot, False).data) == stored
            _, cached = ask(running, "Where?")
            assert cached >= 20 * SIZE
            for other in range(4):
                fill(running, f"{other} ")
            assert running.on_scheduler(lambda s, node=node: s.pool.device.slot_of(node)) < 0  # type: ignore[misc]
            if slot >= 0:
                assert bytes(host.encoded(slot, False).data) == stored, (
                    "demoted: the shard's bytes, not new ones"
                )
            assert ask(running, "Where?")[1] >= 20 * SIZE
            running.idle()


def test_what_was_decoded_and_has_no_copy_below_is_dropped_not_encoded_again() -> None:
    pool = TieredPool(POLICIES.load("lru"), device=1, host=1, encodes=True)
    a, b, c = (pool.add_node(-1) for _ in range(3))

    def serve(node: int, now: float) -> None:
        lease = pool.acquire([node], 1, now)
        assert lease is not None
        pool.settle(lease, len(lease.loads))
        pool.commit(lease, 1)
        pool.release(lease)

    serve(a, 0.0)
    serve(b, 1.0)
    assert [(move.node, move.target) for move in pool.take_moves()] == [(a, Tier.HOST)]
    serve(a, 2.0)  # decoded; b takes its place in the host tier, where a has been used later
    pool.lower[Tier.HOST].drop(a)
    pool.take_moves()
    lost = pool.lost
    serve(c, 3.0)
    assert pool.take_moves() == [] and pool.tier_of(a) is None and pool.lost == lost + 1
    pool.check()
