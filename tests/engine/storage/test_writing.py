"""Records that wait for a slow disk are read from memory, and lost only where too much waits."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtool.blocks import BlockHash
from kvtool.cache.tiers import Move, Tier
from kvtool.engine.storage.runs import Wanted, joined
from kvtool.engine.storage.writeback import Survivor, WriteBack
from kvtool.engine.storage.writing import Writer

SIZE, BYTES = 4, 5000


class SlowArea(WriteBack):
    """A disk that writes nothing before `gate` is open, and then not to the slots of `full`."""

    gate: threading.Event
    full: tuple[int, ...] = ()

    def write(self, slot: int, record: bytes) -> None:
        assert self.gate.wait(60)
        if slot in self.full:
            raise OSError(28, "No space left on device")
        super().write(slot, record)


@pytest.fixture
def area(tmp_path: Path) -> Iterator[SlowArea]:
    area = SlowArea(tmp_path, 8, SIZE, BYTES, "raw")
    area.gate = threading.Event()
    yield area
    area.gate.set()
    area.close()


def block_of(number: int, slot: int) -> tuple[Move, Survivor, bytes]:
    """A block's move to a slot of the disk, its header, and its bytes."""
    root = BlockHash(bytes(16))
    header = Survivor(slot, BlockHash(bytes([number]) * 16), root, root, 0, np.arange(SIZE, dtype=np.uint32))
    return Move(number, Tier.DEVICE, 0, Tier.DISK, slot), header, bytes([number]) * (BYTES - number)


def read(area: WriteBack, writer: Writer, blocks: dict[int, int]) -> dict[int, bytes | None]:
    """By slot: what is read for block `number` there, in as few runs as there may be."""
    found: dict[int, bytes | None] = {}

    def prove(slot: int, number: int) -> Any:
        def proven(came: Any) -> None:
            data = area.check(BlockHash(bytes([number]) * 16), came)
            found[slot] = None if data is None else bytes(data)

        return proven

    wanted = [
        Wanted(place, *writer.place_of(slot), prove(slot, number))
        for place, (slot, number) in enumerate(blocks.items())
    ]
    for run in joined(wanted, 1 << 20):
        list(run.read(memoryview(bytearray(run.size))))
    return found


def test_what_waits_is_read_as_if_it_were_written_and_the_last_one_in_a_slot_counts(area: SlowArea) -> None:
    writer = Writer(area)
    given = [block_of(1, 0), block_of(2, 3), block_of(3, 1), block_of(4, 0)]
    assert all(writer.put(*each) for each in given)
    want = {0: given[3][2], 3: given[1][2], 1: given[2][2]}
    assert writer.writing and read(area, writer, {0: 4, 3: 2, 1: 3}) == want
    assert read(area, writer, {0: 1}) == {0: None}, "the block that it replaced"
    area.gate.set()
    writer.flush(60)
    assert not writer.writing and writer.settle() == []
    assert all(writer.place_of(slot)[0] is area.file for slot in want)
    assert read(area, writer, {0: 4, 3: 2, 1: 3}) == want
    writer.close()
    assert [found.hash[0] for found in area.survivors()] == [4, 3, 2]


def test_too_much_that_waits_is_refused_but_never_all(area: SlowArea) -> None:
    writer = Writer(area, 3 * BYTES + 1000)
    assert [writer.put(*block_of(number, number)) for number in range(1, 5)] == [True, True, True, False]
    area.gate.set()
    writer.flush(60)
    assert not writer.put(*block_of(5, 5)), "its room is given back when it is settled"
    assert writer.settle() == [] and writer.put(*block_of(5, 5))
    writer.close()
    small = Writer(area, 1)
    assert small.put(*block_of(6, 6)) and not small.put(*block_of(7, 7))
    small.close()


def test_what_could_not_be_written_is_told_once_with_its_reason(area: SlowArea) -> None:
    area.full = (2,)
    writer = Writer(area)
    given = [block_of(number, number) for number in (1, 2, 3)]
    for each in given:
        writer.put(*each)
    assert writer.settle() == []
    area.gate.set()
    writer.flush(60)
    ((move, error),) = writer.settle()
    assert move == given[1][0] and error.strerror == "No space left on device"
    assert writer.settle() == []
    assert read(area, writer, {1: 1, 2: 2, 3: 3}) == {1: given[0][2], 2: None, 3: given[2][2]}
    writer.close()


def test_an_end_does_not_wait_for_what_is_not_begun(area: SlowArea) -> None:
    writer = Writer(area)
    for number in range(1, 5):
        writer.put(*block_of(number, number))
    writer.flush(0.0)
    threading.Timer(0.2, area.gate.set).start()
    writer.close()
    assert [found.hash[0] for found in area.survivors()] == [1]
