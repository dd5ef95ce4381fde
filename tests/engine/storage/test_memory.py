"""Readers use their buffers again, and write no slot once their reading is over."""

import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from kvtool.cache.tiers import Move, Tier
from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.load import load_model
from kvtool.engine.storage.codec import encode_block, load_codec
from kvtool.engine.storage.coded import Encoded
from kvtool.engine.storage.direct import Came, File
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.memory import Staging, populate
from kvtool.engine.storage.reading import InPlaceReading
from kvtool.engine.storage.runs import Wanted, alone

BLOCK = 16


def test_a_thread_keeps_its_own_buffer() -> None:
    staging = Staging()
    long = staging.take(100)
    short = staging.take(10)
    assert (len(long), len(short)) == (100, 10) and short.obj is long.obj
    assert len(staging.take(200)) == 200
    with ThreadPoolExecutor(1) as other:
        assert other.submit(staging.take, 10).result().obj is not staging.take(10).obj


def test_pages_are_real_and_hold_what_they_held() -> None:
    tensor = torch.empty(8 << 20, dtype=torch.uint8)
    tensor[5000:5010] = 7
    populate([tensor[:100], tensor])
    assert tensor[5000:5010].tolist() == [7] * 10
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensor[:: resource.getpagesize()] = 1
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    if faults > 1000:
        pytest.skip("a kernel without MADV_POPULATE_WRITE")
    assert faults < 200  # of 2,048 pages


def test_what_comes_late_is_not_written(tiny_model: Path, tmp_path: Path) -> None:
    model = load_model(str(tiny_model), "auto")
    shape = Identity.of_model(model, BLOCK).shape
    codec = load_codec({"codec": "raw"})
    device = Arena(model, 4, BLOCK)
    for tensor in (*device.keys, *device.values):
        tensor.normal_()
    data = encode_block(codec, shape, device.read_block(0), True)
    before = [tensor.clone() for tensor in (*device.keys, *device.values)]
    (tmp_path / "two").write_bytes(data * 2)
    file = File(tmp_path / "two")
    gate = threading.Event()

    def late(came: Came) -> Encoded:
        gate.wait(60)
        return in_time(came)

    def in_time(came: Came) -> Encoded:
        assert not isinstance(came, OSError)
        return Encoded(codec, came, True)

    loads = [Move(9, Tier.DISK, 0, Tier.DEVICE, slot) for slot in (2, 3)]
    reading = InPlaceReading(device, None, loads, shape, Staging())
    wanted = [Wanted(0, file, 0, len(data), in_time), Wanted(1, file, len(data), len(data), late)]
    with ThreadPoolExecutor(1) as reader:
        reading.begin(reader, alone(wanted))
        while not reading.arrived():
            pass
        assert reading.arrived() == 1 and not reading.done() and reading.failed() == []
        reading.place(1)
        gate.set()
    for tensor, old in zip((*device.keys, *device.values), before, strict=True):
        assert torch.equal(tensor[2], old[0]), "the one in time is in its place"
        assert torch.equal(tensor[3], old[3]), "the late one is not"
