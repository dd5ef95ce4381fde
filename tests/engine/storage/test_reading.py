"""Blocks on their way to the host tier land in pieces."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from kvtool.engine.storage.reading import BlockLift


class SlowRun:
    """Blocks [first, last) of a lift, found one after the other."""

    size = 1

    def __init__(self, first: int, last: int) -> None:
        self.places = range(first, last)

    def read(self, buffer):
        return ((SimpleNamespace(place=place), f"block {place}") for place in self.places)


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
