"""Blocks on their way to the host tier land in pieces."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from kvtool.engine.storage.reading import BlockLift


class SlowRun:
    """Blocks [first, last) of a lift, found one after the other."""

    size = 1

    def __init__(self, first: int, last: int) -> None:
        self.blocks = [SimpleNamespace(place=place) for place in range(first, last)]

    def read(self, buffer):
        return ((block, f"block {block.place}") for block in self.blocks)


class BrokenRun(SlowRun):
    """The same, but that reading ends with an error that nobody expects behind the first block."""

    def read(self, buffer):
        yield next(super().read(buffer))
        raise ZeroDivisionError("by mistake")


def test_a_lift_lands_in_pieces_while_its_caller_forgets_what_has_landed():
    stored: dict[int, str] = {}
    host = SimpleNamespace(put=stored.__setitem__)
    moves = [SimpleNamespace(target_slot=10 + place) for place in range(5)]
    with ThreadPoolExecutor(1) as readers:
        lift = BlockLift(host, moves, readers, [SlowRun(0, 2), SlowRun(2, 5)])
    assert lift.arrived() == 5
    lift.place(0, 2)
    del moves[:2]
    lift.place(2, 5)
    assert stored == {10 + place: f"block {place}" for place in range(5)}


def test_what_a_reader_of_a_lift_does_not_expect_makes_its_blocks_bad_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    moves = [SimpleNamespace(target_slot=place) for place in range(7)]
    with ThreadPoolExecutor(1) as readers:
        lift = BlockLift(SimpleNamespace(), moves, readers, [SlowRun(0, 2), BrokenRun(2, 5), BrokenRun(5, 7)])
    assert lift.arrived() == 3
    assert lift.failed() == [3, 4, 6]
    (line,) = caplog.messages
    assert line == "blocks could not be read ahead and are computed: ZeroDivisionError('by mistake')"
    assert "by mistake" in caplog.text and caplog.records[0].exc_info is not None
