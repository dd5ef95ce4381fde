"""Shards and the write-back area behind the server: used when whole, a counted miss when damaged."""

import shutil
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from click.testing import CliRunner

from kvtool.blocks import BlockHash
from kvtool.cli import main
from kvtool.engine.serving import engine, rates
from kvtool.engine.storage.direct import Came, File
from kvtool.engine.storage.manifest import shard_name
from kvtool.engine.storage.writeback import FIXED, Survivor, WriteBack, record_bytes
from kvtool.errors import KvtoolError

Serving = Callable[..., AbstractContextManager[Any]]
WEB = httpx.Client(timeout=60)
SIZE = 16
OPTIONS: dict[str, Any] = {"device_blocks": 120, "host_memory": 0}
SYSTEM = "You answer questions about trains, planes and ships. " * 8  # as in branching_log


def ask(running: Any, question: str, **fields: Any) -> tuple[str, int]:
    """(answer, cached tokens) of a greedy request that begins as the log's do."""
    body = {
        "model": running.engine.model_id,
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 12,
        "ignore_eos": True,
        **fields,
    }
    answer = WEB.post(f"{running.url}/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    document = answer.json()
    cached = document["usage"]["prompt_tokens_details"]["cached_tokens"]
    return document["choices"][0]["message"]["content"], cached


@pytest.fixture(scope="module")
def shards(tiny_model: Path, branching_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("warm") / "shards"
    arguments = ["--logs", branching_log, "--model", tiny_model, "--block-size", SIZE, "--out", folder]
    result = CliRunner().invoke(main, ["prewarm", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return folder


def test_a_first_request_hits_the_shards_and_answers_as_without(
    serving: Serving, tiny_model: Path, shards: Path
) -> None:
    with serving(model=str(tiny_model), shards=shards, **OPTIONS) as running:
        plain, cached = ask(running, "Where?", cache_salt="nothing is shared")
        assert cached == 0
        warm, cached = ask(running, "Where?")
        assert cached // SIZE >= len(SYSTEM) // SIZE and warm == plain
        assert running.counts["hit_tokens_shards"] == cached and running.counts["bad_blocks"] == 0
        again, more = ask(running, "Where?")
        assert again == plain and more >= cached and running.counts["hit_tokens_device"] == more


def test_a_flipped_bit_is_a_counted_miss_with_the_same_answer(
    serving: Serving, tiny_model: Path, shards: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(shards, broken)
    with serving(model=str(tiny_model), shards=broken, **OPTIONS) as running:
        row = next(row for row in running.engine.shards.rows if row.depth == 5)
        file = broken / shard_name(row.shard)
        data = bytearray(file.read_bytes())
        data[row.offset + row.bytes // 2] ^= 1
        file.chmod(0o600)
        file.write_bytes(data)
        plain, _ = ask(running, "Where?", cache_salt="nothing is shared")
        warm, cached = ask(running, "Where?")
        assert warm == plain and cached == 5 * SIZE
        assert running.counts["bad_blocks"] == 1
        assert "checksum" in caplog.text
        again, cached = ask(running, "Where?")
        assert again == plain and cached > 5 * SIZE and running.counts["bad_blocks"] == 1
        running.idle()


def test_a_shard_that_is_gone_is_a_counted_miss(
    serving: Serving, tiny_model: Path, shards: Path, tmp_path: Path
) -> None:
    with serving(model=str(tiny_model), shards=shards, **OPTIONS) as running:
        whole = ask(running, "Where?")[1]
    broken = tmp_path / "broken"
    shutil.copytree(shards, broken)
    with serving(model=str(tiny_model), shards=broken, **OPTIONS) as running:
        for file in broken.glob("shard-*.safetensors"):
            file.unlink()
        plain, _ = ask(running, "Where?", cache_salt="nothing is shared")
        warm, cached = ask(running, "Where?")
        assert (warm, cached) == (plain, 0)
        assert running.counts["bad_blocks"] == whole // SIZE > 20, "every block of the load, each once"


def test_past_the_page_cache_the_same_blocks_come(
    serving: Serving, tiny_model: Path, shards: Path, tmp_path: Path
) -> None:
    """By way of the staging area, which an arena of quantized blocks has on a CPU, too."""
    options = {"device_codec": "int8", "disk": tmp_path / "disk", "disk_memory": 1 << 20, **OPTIONS}
    with serving(model=str(tiny_model), shards=shards, **options) as running:
        running.engine.scheduler.rates.worth_loading = len  # this model computes faster than it reads

        def again() -> tuple[str, int]:
            WEB.post(f"{running.url}/kv/reset", json={})
            return ask(running, "Where?")

        def refused() -> int:
            text = WEB.get(f"{running.url}/metrics").text
            return int(float(text.partition("\nkvtool_refused_direct_reads_total ")[2].split()[0]))

        through = ask(running, "Where?")
        assert through[1] // SIZE >= len(SYSTEM) // SIZE
        running.engine.store.read_past_cache()
        files = list(running.engine.shards._files.values())
        assert files and all(file.direct for file in files)
        assert again() == through
        before = refused()
        for file in files:
            file._able = False  # as if the file system had refused
        assert again() == through and refused() > before
        running.idle()
        assert running.counts["bad_blocks"] == 0


def other_model(tiny_model: Path, folder: Path, seed: int) -> Path:
    """The same configuration with other weights."""
    import torch
    import transformers

    shutil.copytree(tiny_model, folder)
    torch.manual_seed(seed)
    config = transformers.AutoConfig.from_pretrained(folder)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def test_shards_of_other_weights_are_refused_and_the_field_named(
    tiny_model: Path, shards: Path, tmp_path: Path
) -> None:
    other = other_model(tiny_model, tmp_path / "tiny-llama", 12)
    arguments = ["serve", "--shards", str(shards), "--model", str(other), "--port", "0"]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 2
    assert "does not fit the model" in result.stderr and "weights" in result.stderr
    assert "layers" not in result.stderr, "only fields that differ are named"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (["--chat-template", "chatml-tools"], None),
        (["--dtype", "bfloat16"], "dtype"),
        (["--block-size", "32"], "--block-size"),
    ],
)
def test_other_settings_are_refused_by_name(
    tiny_model: Path, shards: Path, options: list[str], field: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvtool.engine.serving import launch

    monkeypatch.setattr(launch.Server, "run", lambda self, sockets: sockets[0].close())
    arguments = ["serve", "--shards", str(shards), "--model", str(tiny_model), "--port", "0", *options]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == (2 if field else 0), result.output
    assert field is None or field in result.stderr


def test_blocks_survive_a_restart_and_a_damaged_one_is_computed(
    serving: Serving, tiny_model: Path, tmp_path: Path
) -> None:
    options = {"model": str(tiny_model), "block_size": SIZE, "disk": tmp_path / "disk", **OPTIONS}
    options["disk_memory"] = 1 << 20
    with serving(**options) as running:
        plain, cached = ask(running, "Where?")
        assert cached == 0
    with serving(**options) as running:
        again, cached = ask(running, "Where?")
        assert again == plain and cached >= len(SYSTEM) // SIZE * SIZE
        assert running.counts["hit_tokens_disk"] == cached and running.counts["bad_blocks"] == 0
        with pytest.raises(KvtoolError, match="another server"):
            WriteBack(next((tmp_path / "disk").iterdir()), 4, SIZE, 64, "raw")
    (file,) = (tmp_path / "disk").glob("*/blocks.kv")
    stride = record_bytes(SIZE, running.engine.tiers.slot_bytes)
    with file.open("r+b") as handle:
        handle.seek(3 * stride + stride // 2)
        handle.write(b"\xff\x00\xff\x00")
    with serving(**options) as running:
        again, cached = ask(running, "Where?")
        assert again == plain and 0 < cached < len(SYSTEM) // SIZE * SIZE
        assert running.counts["bad_blocks"] == 1
        running.idle()


def test_a_small_pool_demotes_to_host_and_disk_and_answers_stay_right(
    serving: Serving, tiny_model: Path, tmp_path: Path
) -> None:
    questions = [f"{topic} {topic} {topic}?" for topic in ("Red", "Green", "Blue", "Black", "White")]
    with serving(model=str(tiny_model), block_size=SIZE, device_blocks=200) as calm:
        plain = {question: ask(calm, question, cache_salt=question)[0] for question in questions}
        block = calm.engine.tiers.block_bytes
    with serving(
        model=str(tiny_model),
        block_size=SIZE,
        device_blocks=40,
        host_memory=20 * block,
        disk=tmp_path / "disk",
        disk_memory=100 * block,
    ) as running:
        for question in [*questions[:2] * 3, *questions, *questions]:
            # every question under its own salt: no sharing, so that blocks must leave the device
            assert ask(running, question, cache_salt=question)[0] == plain[question]
        running.idle()
        counts = running.counts
        assert counts["hit_tokens_host"] > 0 and counts["hit_tokens_disk"] > 0
        assert counts["moves_device_host"] > 0 and counts["bad_blocks"] == 0


def test_a_full_disk_drops_the_block_and_serves_on(
    serving: Serving, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: WriteBack, slot: int, record: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(WriteBack, "write", full)
    options = {"model": str(tiny_model), "block_size": SIZE, "disk": tmp_path / "disk", **OPTIONS}
    with serving(**options, disk_memory=1 << 20) as running:
        plain, _ = ask(running, "Where?")
        again, cached = ask(running, "Where?")
        assert again == plain and cached > 0
        running.idle()
        assert running.counts["failed_moves"] > 0


def test_a_full_disk_is_asked_once_a_block_warned_of_once_and_used_when_it_has_room_again(
    serving: Serving,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write = WriteBack.write
    refused: list[BlockHash] = []

    def full(self: WriteBack, slot: int, record: bytes) -> None:
        refused.append(BlockHash(FIXED.unpack_from(record)[4]))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(WriteBack, "write", full)
    options = {"model": str(tiny_model), "block_size": SIZE, "disk": tmp_path / "disk", **OPTIONS}
    with serving(**options, disk_memory=8 << 20) as running:
        plain, _ = ask(running, "Where?")

        def background_work(scheduler: Any) -> None:
            for _ in range(50):
                running.engine.runtime._idle()
                running.engine.store.flush(60)

        running.on_scheduler(background_work)
        blocks = set(refused)
        assert len(refused) == len(blocks) > 0  # what is refused is not offered again and again
        lines = [record.getMessage() for record in caplog.records if "write-back failed" in record.message]
        assert len(lines) == 1 and "blocks.kv: No space left on device (make room" in lines[0]
        monkeypatch.setattr(engine, "WRITE_AGAIN", 0.0)
        running.on_scheduler(lambda scheduler: running.engine.runtime._idle())
        running.engine.store.flush(60)
        assert len(refused) > len(blocks) == len(set(refused))  # but after a while it is
        monkeypatch.setattr(engine, "WRITE_AGAIN", 1e9)
        monkeypatch.setattr(WriteBack, "write", write)
    # the server's end gave all of them another chance
    with serving(**options, disk_memory=8 << 20) as running:
        again, cached = ask(running, "Where?")
        assert again == plain and cached > 0


def test_an_area_that_fills_its_disk_is_all_there_after_a_restart(
    serving: Serving, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    options = {"model": str(tiny_model), "block_size": SIZE, "disk": tmp_path / "disk", **OPTIONS}
    with serving(**options, disk_memory=1 << 20) as running:
        plain, _ = ask(running, "Where?")
        running.idle()
        slots = running.engine.tiers.disk
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=0))
    (area,) = (tmp_path / "disk").glob("*/blocks.kv")
    taken = area.stat().st_blocks * 512
    with serving(**options, disk_memory=1 << 20) as running:
        tiers = running.engine.tiers
        record = record_bytes(SIZE, tiers.slot_bytes)
        assert tiers.disk == taken // record < slots
        again, cached = ask(running, "Where?")
        assert again == plain and cached > 0
    with (
        pytest.raises(KvtoolError, match=r"no room for a block of .* \(make room there"),
        serving(**{**options, "disk": tmp_path / "other"}, disk_memory=1 << 20),
    ):
        pass


def test_a_disk_that_stalls_costs_patience_and_not_the_answer(
    serving: Serving, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"model": str(tiny_model), "block_size": SIZE, "disk": tmp_path / "disk", **OPTIONS}
    with serving(**options, disk_memory=1 << 20) as running:
        plain, _ = ask(running, "Where?")
    gate = threading.Event()
    read = File.read

    def stalled(self: File, into: memoryview, offset: int) -> Came:
        gate.wait(60)
        return read(self, into, offset)

    monkeypatch.setattr(File, "read", stalled)
    monkeypatch.setattr(rates, "PATIENCE", 0.2)
    with serving(**options, disk_memory=1 << 20) as running:
        try:
            again, cached = ask(running, "Where?")  # the disk answers nobody until this has come
        finally:
            gate.set()
        assert (again, cached) == (plain, 0)
        assert running.counts["late_blocks"] > 0 and running.counts["bad_blocks"] == 0
        warm, cached = ask(running, "Where?")
        assert warm == plain and cached > 0
        running.idle()


def test_a_disk_that_takes_nothing_delays_no_answer_and_what_waits_for_it_is_found(
    serving: Serving, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every write waits until all answers are there; blocks that left memory come back from the queue."""
    gate = threading.Event()
    write = WriteBack.write

    def stalled(self: WriteBack, slot: int, record: bytes) -> None:
        gate.wait(60)
        write(self, slot, record)

    questions = ["Red?", "Green?", "Blue?", "Black?"]
    with serving(model=str(tiny_model), block_size=SIZE, **OPTIONS) as calm:
        plain = {question: ask(calm, question)[0] for question in questions}
        block = calm.engine.tiers.block_bytes
    monkeypatch.setattr(WriteBack, "write", stalled)
    options = {"model": str(tiny_model), "block_size": SIZE, "disk": tmp_path / "disk"}
    options |= {"device_blocks": 40, "host_memory": 20 * block, "disk_memory": 200 * block}
    with serving(**options) as running:
        try:
            for question in questions * 2:
                assert ask(running, question, cache_salt=question)[0] == plain[question]
            counts = dict(running.counts)
        finally:
            gate.set()
        assert counts["hit_tokens_disk"] > 0
        assert not any(counts.get(name) for name in ("failed_moves", "bad_blocks", "late_blocks"))
        running.idle()
    with serving(**options) as running:  # its end has written all
        assert ask(running, questions[0], cache_salt=questions[0])[0] == plain[questions[0]]
        assert running.counts["hit_tokens_disk"] > 0


def test_torn_and_foreign_records_are_not_taken_over(tmp_path: Path) -> None:
    area = WriteBack(tmp_path, 4, 8, 100, "raw")
    tokens = np.arange(8, dtype=np.uint32)
    blocks = [
        Survivor(
            slot, BlockHash(bytes([slot + 1]) * 16), BlockHash(bytes(16)), BlockHash(bytes(16)), 0, tokens
        )
        for slot in range(3)
    ]
    for block in blocks:
        area.write(block.slot, area.record(block, bytes([block.slot]) * 100))

    def read(area: WriteBack, slot: int, block: BlockHash) -> memoryview | None:
        offset, size = area.place_of(slot)
        return area.check(block, area.file.read(memoryview(bytearray(size)), offset))

    assert read(area, 1, blocks[1].hash) == b"\x01" * 100
    assert read(area, 1, blocks[2].hash) is None, "a record under another name"
    area.close()
    with (tmp_path / "blocks.kv").open("r+b") as handle:
        handle.seek(4096 + 10)  # the second header
        handle.write(b"\xaa")
        handle.truncate(2 * 4096 + 90)  # the third header is cut off
    other = WriteBack(tmp_path / "other", 4, 8, 100, "int8")
    other.close()
    area = WriteBack(tmp_path, 4, 8, 100, "raw")
    assert [(found.slot, found.hash) for found in area.survivors()] == [(0, blocks[0].hash)]
    assert read(area, 2, blocks[2].hash) is None and read(area, 3, blocks[2].hash) is None
    area.close()
    assert (tmp_path / "blocks.kv").stat().st_mode & 0o777 == 0o600, "keys and values reveal the prompt"


def test_what_other_models_left_in_the_folder_is_said(
    serving: Serving, tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody deletes it: another server may be using it."""
    options = {**OPTIONS, "model": str(tiny_model), "disk": tmp_path, "disk_memory": 1 << 20}
    with serving(**options, block_size=16) as first:
        ask(first, "Where?")
    assert "other models" not in caplog.text
    (left,) = tmp_path.iterdir()
    taken = (left / "blocks.kv").stat().st_blocks * 512
    with serving(**options, block_size=32) as second:
        own = second.engine.identity.root().hex()
    assert left.name != own and left.is_dir()
    said = f"{taken} bytes are other models', dtypes' or block sizes' blocks"
    assert said in caplog.text and f"this server's are in {own}" in caplog.text and taken > 0
