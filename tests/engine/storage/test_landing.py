"""What comes by way of the staging area is, to the bit, what comes block by block; faults cost one block."""

import os
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtool.cache.tiers import Move, Tier
from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.load import load_model
from kvtool.engine.compute.quantized_arena import QuantizedArena
from kvtool.engine.storage import staging, store
from kvtool.engine.storage.codec import BlockCodec, encode_block, load_codec
from kvtool.engine.storage.codecs import CODECS
from kvtool.engine.storage.coded import Encoded, place_blocks
from kvtool.engine.storage.direct import PAGE, Came, File
from kvtool.engine.storage.host import EncodedHost
from kvtool.engine.storage.index import block_checksum
from kvtool.engine.storage.landing import StagedReading
from kvtool.engine.storage.lanes import Lanes, Over, lanes_of
from kvtool.engine.storage.layout import BlockShape
from kvtool.engine.storage.reading import State
from kvtool.engine.storage.runs import Wanted, joined
from kvtool.engine.storage.staging import StagingArea
from tests.engine.storage.simulated import Sim, SimEvent, SimLane

SIZE = 16
NONE = lanes_of(torch.device("cpu"))
RAW = load_codec({"codec": "raw"})


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Any:
    return load_model(str(tiny_model), "cpu", "auto")


@pytest.fixture
def shape(model: Any) -> BlockShape:
    return BlockShape.of_layers(SIZE, model.dtype_name, model.config.layer_shapes)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Areas of two pieces, each for one block or two."""
    monkeypatch.setattr(staging, "PIECE", 6 * PAGE)
    monkeypatch.setattr(staging, "TOTAL", 12 * PAGE)
    monkeypatch.setattr(staging, "FEWEST", 2)


class Stored:
    """Blocks in a file, at odd places; `wanted` proves them by checksum."""

    def __init__(self, path: Path, blocks: Sequence[Encoded]) -> None:
        self.blocks = blocks
        self.offsets: list[int] = []
        data = b"\x55" * 36
        for number, block in enumerate(blocks):
            self.offsets.append(len(data))
            data += bytes(block.data) + b"\xaa" * (0 if number % 3 else 4)
        path.write_bytes(data)
        self.file = File(path)

    def wanted(self, chosen: Sequence[int], file: File | None = None) -> list[Wanted]:
        return [
            Wanted(
                place,
                file or self.file,
                self.offsets[number],
                len(self.blocks[number].data),
                partial(self.prove, number),
            )
            for place, number in enumerate(chosen)
        ]

    def prove(self, number: int, came: Came) -> Encoded | None:
        block = self.blocks[number]
        name: Any = bytes(16)
        if isinstance(came, OSError) or block_checksum(name, came) != block_checksum(name, block.data):
            return None
        return Encoded(block.codec, came, block.first)


def loads(targets: Sequence[int]) -> list[Move]:
    return [Move(9, Tier.SHARDS, 0, Tier.DEVICE, slot) for slot in targets]


def random_arena(model: Any, slots: int = 12) -> Arena:
    arena = Arena(model, slots, SIZE)
    for tensor in (*arena.keys, *arena.values):
        tensor.normal_(generator=torch.Generator().manual_seed(tensor.shape[-1]))
    return arena


def contents(arena: Arena, slots: Sequence[int]) -> list[torch.Tensor]:
    return [tensor for pair in arena.read_blocks(slots) for tensor in pair]


def finish(reading: StagedReading) -> None:
    while not reading.done():
        pass


def free(area: StagingArea) -> list[int]:
    """Pieces that a reader would get at once."""
    area._collect()
    return sorted(area._free)


def encoded(codec: BlockCodec, shape: BlockShape, source: Arena, slot: int, first: bool) -> Encoded:
    return Encoded(codec, encode_block(codec, shape, source.read_block(slot), first), first)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("kind", ["raw", "raw by the kernels", "int8"])
@pytest.mark.parametrize("names", [[name] for name in CODECS.names()] + [["raw", "int8", "lossless", "int4"]])
def test_what_is_delivered_is_what_each_block_decodes_to(
    model: Any, shape: BlockShape, tmp_path: Path, kind: str, names: list[str], past: bool
) -> None:
    source, arenas = random_arena(model), []
    blocks = []
    for number in range(9):
        codec = load_codec({"codec": names[number % len(names)]})
        blocks.append(encoded(codec, shape, source, number, number in (2, 4)))
    stored = Stored(tmp_path / "f", blocks)
    stored.file.direct = past
    slots = [11, 4, 0, 9, 1, 2, 10, 5, 7]
    for _ in range(2):
        if kind == "int8":
            made: Any = load_codec({"codec": "int8"})
            arenas.append(QuantizedArena(model, 12, SIZE, made, 10))
        else:
            arenas.append(Arena(model, 12, SIZE))
            arenas[-1].kernels = kind != "raw"
    area = StagingArea(max(len(block.data) for block in blocks), False)
    reading = StagedReading(arenas[0], None, loads(slots), shape, area, NONE)
    with ThreadPoolExecutor(3) as readers:
        reading.begin(readers, joined(stored.wanted(range(9)), area.size))
        finish(reading)
        assert reading.arrived() == 9 and reading.failed() == []
        reading.place(9)
    place_blocks(arenas[1], shape, slots, blocks)
    for found, right in zip(contents(arenas[0], slots), contents(arenas[1], slots), strict=True):
        assert torch.equal(found, right)
    if isinstance(arenas[0], QuantizedArena):
        assert [arenas[0].is_raw(slot) for slot in slots] == [block.first for block in blocks]
    elif names == ["raw"]:
        for found, right in zip(contents(arenas[0], slots), contents(source, range(9)), strict=True):
            assert torch.equal(found, right)
    assert free(area) == [0, 1], "no piece is lost"


class Sometime(Executor):
    """A reader whose work is done when the test says so."""

    def __init__(self) -> None:
        self.work: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.work.append((future, partial(function, *arguments)))
        return future

    def run(self, draw: random.Random) -> None:
        future, work = self.work.pop(draw.randrange(len(self.work)))
        if future.set_running_or_notify_cancel():
            future.set_result(work())


class Ordered(Arena):
    """What it writes itself is a part of the compute, which happens when it is called."""

    compute: SimLane

    def write_blocks(self, slots: Sequence[int], blocks: Any) -> None:
        self.compute.last.synchronize()
        super().write_blocks(slots, blocks)


DEVICE, KINDS = 6, ("raw", "int8")


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 30))
@pytest.mark.usefixtures("small")
def test_whatever_streams_and_disks_do_first_no_piece_is_filled_too_early(
    model: Any, shape: BlockShape, tmp_path: Path, seed: int
) -> None:
    """Blocks are numbers. A piece that is filled, or a slot that is used, too early shows another one."""
    draw = random.Random(seed)
    sim = Sim(draw)
    compute = SimLane(sim)
    lanes = Lanes(SimLane(sim), SimLane(sim), lambda: compute.last)
    device = Ordered(model, DEVICE, SIZE)
    device.compute = compute
    blocks = []
    for number in range(12):
        pairs = [
            (torch.full_like(keys[0], number + layer / 4), torch.full_like(values[0], -number - layer / 4))
            for layer, (keys, values) in enumerate(zip(device.keys, device.values, strict=True))
        ]
        codec = load_codec({"codec": KINDS[number % 2]})
        blocks.append(Encoded(codec, encode_block(codec, shape, pairs, False), False))
    stored = Stored(tmp_path / f"{seed}", blocks)
    area = StagingArea(max(len(block.data) for block in blocks), False)
    readers = Sometime()
    known: dict[int, int] = {}
    open_: list[tuple[StagedReading, list[int], list[int]]] = []
    busy: set[int] = set()

    def seen(slot: int, layer: int, number: int) -> None:
        found = (device.keys[layer][slot], device.values[layer][slot])
        for tensor, right in zip(found, (number + layer / 4, -number - layer / 4), strict=True):
            assert ((tensor - right).abs() <= 0.05 * abs(right)).all(), (slot, layer, number)

    for _ in range(80):
        kind = draw.choice([0, 0, 1, 1, 1, 2, 2, 3, 4, 4, 4])
        if kind == 0 and len(busy) < DEVICE:
            slots = draw.sample(
                sorted(set(range(DEVICE)) - busy), draw.randint(1, min(DEVICE - len(busy), 4))
            )
            numbers = [draw.randrange(12) for _ in slots]
            reading = StagedReading(device, None, loads(slots), shape, area, lanes)
            wanted = stored.wanted(numbers)
            reading.begin(readers, joined(wanted, draw.choice([1, area.size])))
            busy.update(slots)
            for slot in slots:
                known.pop(slot, None)
            open_.append((reading, slots, numbers))
        elif kind == 1 and readers.work and (area._free or area._leaving):  # else it would wait for ever
            readers.run(draw)
        elif kind == 2 and open_:
            for reading, _, _ in open_:
                reading.done()
        elif kind == 3 and open_:  # complete, late or abandoned
            reading, slots, numbers = open_.pop(draw.randrange(len(open_)))
            count = draw.randint(0, reading.arrived()) if draw.randrange(3) == 0 else reading.arrived()
            reading.place(count)
            known.update(zip(slots[:count], numbers[:count], strict=True))
            busy.difference_update(slots)
        elif kind == 4 and known:  # a step that was launched and reads as late as it likes
            slot, layer = draw.choice(sorted(known)), draw.randrange(len(device.keys))
            waits = [each.layers[layer] for each in device.arrivals.of([slot])]
            compute.run(partial(seen, slot, layer, known[slot]), waits)
        for _ in range(draw.randrange(5)):
            sim.tick()
    for reading, _, _ in open_:
        reading.place(0)
    while readers.work:
        readers.run(draw)
    while sim.tick():
        pass
    assert not any(sim.queues), "a deadlock"
    for slot, number in known.items():
        for layer in range(len(device.keys)):
            seen(slot, layer, number)
    assert free(area) == [0, 1], "no piece is lost"


def test_raw_blocks_from_disk_come_layer_by_layer(model: Any, shape: BlockShape, tmp_path: Path) -> None:
    sim = Sim(random.Random(0))
    lanes = Lanes(SimLane(sim), SimLane(sim), lambda: Over())
    source, device = random_arena(model), Arena(model, 4, SIZE)
    stored = Stored(tmp_path / "f", [encoded(RAW, shape, source, slot, False) for slot in range(3)])
    area = StagingArea(1 << 16, False)
    reading = StagedReading(device, None, loads([3, 0, 2]), shape, area, lanes)
    with ThreadPoolExecutor(1) as readers:
        reading.begin(readers, joined(stored.wanted(range(3)), area.size))
        finish(reading)
    reading.place(3)
    (arrival,) = device.arrivals.of([2])
    assert device.arrivals.of([1]) == []
    arrival.layers[0].wait()
    assert torch.equal(device.keys[0][3], source.keys[0][0])
    assert not arrival.layers[1].query(), "the second layer is waited for by itself"
    assert len(area._leaving) == 1 and not area._leaving[0][1][0].query(), "its piece is still being read"
    arrival.layers[1].wait()
    assert torch.equal(device.values[1][2], source.values[1][2])


class Flipping(File):
    """A bit flips in memory once the read is over, in what came from `at`."""

    def __init__(self, path: Path, at: int) -> None:
        super().__init__(path)
        self.at = at

    def read(self, into: memoryview, offset: int) -> Came:
        came = super().read(into, offset)
        assert not isinstance(came, OSError)
        if offset <= self.at < offset + len(came):
            came[self.at - offset] ^= 8
        return came


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("fault", ["short", "flip", "gone"])
def test_a_fault_costs_the_blocks_that_it_hits(
    model: Any, shape: BlockShape, tmp_path: Path, fault: str
) -> None:
    source, device = random_arena(model), Arena(model, 6, SIZE)
    for tensor in (*device.keys, *device.values):
        tensor.zero_()
    blocks = [encoded(RAW, shape, source, slot, False) for slot in range(5)]
    stored = Stored(tmp_path / "f", blocks)
    file: File | None = None
    bad = [2]
    if fault == "flip":
        file = Flipping(tmp_path / "f", stored.offsets[2] + 1000)
    elif fault == "gone":
        bad, file = [0, 1, 2, 3, 4], File(tmp_path / "other")
    else:
        os.truncate(tmp_path / "f", stored.offsets[2] + len(blocks[2].data) - 1)
        bad = [2, 3, 4]
    area = StagingArea(len(blocks[0].data), False)
    reading = StagedReading(device, None, loads([1, 2, 3, 4, 5]), shape, area, NONE)
    with ThreadPoolExecutor(2) as readers:
        reading.begin(readers, joined(stored.wanted(range(5), file), area.size))
        finish(reading)
    assert reading.failed() == bad and reading.arrived() == bad[0]
    reading.place(reading.arrived())
    for place in range(5):
        here = torch.equal(device.keys[1][place + 1], source.keys[1][place])
        assert here == (place not in bad), "whole or not at all"
        assert here or not device.keys[1][place + 1].any()
    assert free(area) == [0, 1], "every piece came back"


class Stalling(File):
    """Reads from `at` on come when the gate opens."""

    def __init__(self, path: Path, at: int) -> None:
        super().__init__(path)
        self.at = at
        self.gate = threading.Event()
        self.begun = threading.Event()

    def read(self, into: memoryview, offset: int) -> Came:
        if offset >= self.at:
            self.begun.set()
            assert self.gate.wait(60)
        return super().read(into, offset)


@pytest.mark.usefixtures("small")
def test_a_stalled_read_is_given_up_and_its_piece_is_not_filled_by_others(
    model: Any, shape: BlockShape, tmp_path: Path
) -> None:
    source, device = random_arena(model), Arena(model, 6, SIZE)
    for tensor in (*device.keys, *device.values):
        tensor.zero_()
    stored = Stored(tmp_path / "f", [encoded(RAW, shape, source, slot, False) for slot in range(12)])
    file = Stalling(tmp_path / "f", stored.offsets[8] // PAGE * PAGE)
    area = StagingArea(len(stored.blocks[0].data), False)
    late = StagedReading(device, None, loads([0, 1]), shape, area, NONE)
    with ThreadPoolExecutor(2) as readers:
        late.begin(readers, joined(stored.wanted([0, 8], file), 1))
        while not late.arrived():
            assert not late.done()
        assert file.begun.wait(60)
        late.place(late.arrived())  # the deadline has come
        for _ in range(3):  # others go on with the piece that is left
            other = StagedReading(device, None, loads([2, 3]), shape, area, NONE)
            other.begin(readers, joined(stored.wanted([4, 6]), 1))
            finish(other)
            assert other.arrived() == 2
            other.place(2)
            assert len(free(area)) == 1, "a reader may still write to the other"
        file.gate.set()
    assert torch.equal(device.keys[0][0], source.keys[0][0]) and not device.keys[0][1].any()
    assert torch.equal(device.values[1][3], source.values[1][6])
    assert free(area) == [0, 1]


@pytest.mark.usefixtures("small")
def test_more_than_the_area_holds_comes_as_pieces_get_free(
    model: Any, shape: BlockShape, tmp_path: Path
) -> None:
    source, device = random_arena(model), Arena(model, 12, SIZE)
    stored = Stored(tmp_path / "f", [encoded(RAW, shape, source, slot, False) for slot in range(12)])
    area = StagingArea(len(stored.blocks[0].data), False)
    reading = StagedReading(device, None, loads(range(12)), shape, area, NONE)
    with ThreadPoolExecutor(4) as readers:
        reading.begin(readers, joined(stored.wanted(range(12)), 1))
        while len(reading._came) < 2:
            pass
        assert reading.arrived() == 0, "nobody has looked, and two more readers wait for a piece"
        finish(reading)
    reading.place(12)
    for found, right in zip(contents(device, range(12)), contents(source, range(12)), strict=True):
        assert torch.equal(found, right)


@pytest.mark.usefixtures("small")
def test_waiting_readers_of_a_cancelled_load_let_others_read(
    model: Any, shape: BlockShape, tmp_path: Path
) -> None:
    source, device = random_arena(model), Arena(model, 12, SIZE)
    stored = Stored(tmp_path / "f", [encoded(RAW, shape, source, slot, False) for slot in range(12)])
    area = StagingArea(len(stored.blocks[0].data), False)
    gone = StagedReading(device, None, loads(range(8)), shape, area, NONE)
    with ThreadPoolExecutor(4) as readers:
        gone.begin(readers, joined(stored.wanted(range(8)), 1))
        while len(gone._came) < 2:
            pass
        gone.place(0)
        here = StagedReading(device, None, loads([8, 9]), shape, area, NONE)
        here.begin(readers, joined(stored.wanted([8, 9]), 1))
        finish(here)
        here.place(2)
    assert gone.states == [State.COMING] * 8
    assert torch.equal(device.keys[0][9], source.keys[0][9])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["raw", "int8"])
def test_a_cancelled_load_leaves_its_piece_to_the_copy_that_still_reads_it(
    model: Any, shape: BlockShape, tmp_path: Path, name: str
) -> None:
    sim = Sim(random.Random(0))
    lanes = Lanes(SimLane(sim), SimLane(sim), lambda: Over())
    source, device = random_arena(model), Arena(model, 4, SIZE)
    codec = load_codec({"codec": name})
    stored = Stored(tmp_path / "f", [encoded(codec, shape, source, slot, False) for slot in range(2)])
    area = StagingArea(len(stored.blocks[0].data), False)
    reading = StagedReading(device, None, loads([0, 1]), shape, area, lanes)
    with ThreadPoolExecutor(1) as readers:
        reading.begin(readers, joined(stored.wanted([0, 1]), area.size))
        finish(reading)
    reading.place(0)
    assert len(free(area)) == 1, "the copy has not even begun"
    pieces = {area.take(lambda: False), area.take(lambda: False)}  # the second one waits for the copy
    assert pieces == {0, 1} and not sim.tick(), "all copies are over now"


def test_what_a_codec_could_not_hold_is_a_miss_when_it_is_brought_up(model: Any, shape: BlockShape) -> None:
    codec = load_codec({"codec": "int8"})
    source, device = random_arena(model), Arena(model, 4, SIZE)
    source.values[0][1, 2] = torch.nan
    host = EncodedHost(shape, codec)
    host.keep(source, [0, 1, 2], [5, 6, 7], [False] * 3)
    moves = [Move(9, Tier.HOST, slot, Tier.DEVICE, slot - 5) for slot in (5, 6, 7)]
    reading = StagedReading(device, host, moves, shape, StagingArea(1, False), NONE)
    reading.begin(Sometime(), [])
    assert reading.done() and reading.arrived() == 1 and reading.failed() == [1]
    reading.place(1)
    right = encoded(codec, shape, source, 0, False).decode(shape)
    assert torch.equal(device.read_block(0)[1][1], right[1][1])


def test_an_element_that_begins_between_two_is_not_read_in_place(
    model: Any, shape: BlockShape, tmp_path: Path
) -> None:
    source, device = random_arena(model), Arena(model, 2, SIZE)
    block = encoded(RAW, shape, source, 3, False)
    (tmp_path / "f").write_bytes(b"\x01" + bytes(block.data))
    stored = Stored(tmp_path / "other", [block])
    stored.offsets = [1]
    reading = StagedReading(device, None, loads([1]), shape, StagingArea(1 << 16, False), NONE)
    with ThreadPoolExecutor(1) as readers:
        reading.begin(readers, joined(stored.wanted([0], File(tmp_path / "f")), 1))
        finish(reading)
    reading.place(1)
    for found, right in zip(contents(device, [1]), contents(source, [3]), strict=True):
        assert torch.equal(found, right)


@pytest.mark.parametrize("seed", range(12))
def test_a_slot_is_filled_behind_whoever_read_it_before(
    model: Any, shape: BlockShape, tmp_path: Path, seed: int
) -> None:
    """And not behind what was launched since, which leaves the slot alone."""
    sim = Sim(random.Random(seed))
    compute = SimLane(sim)
    lanes = Lanes(SimLane(sim), SimLane(sim), lambda: compute.last)
    source, device = random_arena(model), Arena(model, 2, SIZE)
    for tensor in (*device.keys, *device.values):
        tensor.zero_()
    stored = Stored(tmp_path / "f", [encoded(RAW, shape, source, 3, False)])
    seen: list[bool] = []
    compute.run(lambda: seen.append(bool(device.keys[0][1].any())))
    reading = StagedReading(device, None, loads([1]), shape, StagingArea(1 << 16, False), lanes)
    later = compute.run(lambda: None, [SimEvent(sim)])  # never over
    with ThreadPoolExecutor(1) as readers:
        reading.begin(readers, joined(stored.wanted([0]), 1))
        finish(reading)
    reading.place(1)
    (arrival,) = device.arrivals.of([1])
    arrival.layers[-1].synchronize()
    assert seen == [False] and not later.query()
    assert torch.equal(device.values[1][1], source.values[1][3])


@pytest.mark.parametrize(
    ("kind", "memory", "past"), [("cuda", 199, True), ("cuda", 200, False), ("cpu", 0, False)]
)
def test_disks_are_read_past_the_cache_beside_a_gpu_when_it_cannot_hold_them(
    shape: BlockShape, monkeypatch: pytest.MonkeyPatch, kind: str, memory: int, past: bool
) -> None:
    monkeypatch.setattr(store, "StagingArea", lambda largest, page_locked: (largest, page_locked))
    monkeypatch.setattr(store, "available", lambda: memory)
    device: Any = SimpleNamespace(device=torch.device(kind))
    shards, area = MagicMock(), MagicMock(slots=3, place_of=lambda slot: (0, 40))
    shards.rows = [SimpleNamespace(hash=number, bytes=size) for number, size in enumerate((50, 30))]
    shards.manifest.codecs = {}
    made = store.BlockStore(device, shape, RAW, None, area, shards, NONE)
    assert made._area == (50, kind == "cuda")
    assert shards.read_past_cache.called == past == (area.file.direct is True)
