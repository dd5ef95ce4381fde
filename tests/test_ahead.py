"""Working ahead: order, a bounded lead, errors where they belong, and a thread that ends when asked to."""

import threading
from collections.abc import Iterator

import pytest

from kvtool.ahead import ahead


def test_items_come_in_order_and_from_another_thread() -> None:
    makers = set()

    def items() -> Iterator[int]:
        for number in range(100):
            makers.add(threading.get_ident())
            yield number

    assert list(ahead(items(), 7, lambda _: 1)) == list(range(100))
    assert makers != set() and threading.get_ident() not in makers


def test_the_lead_is_bounded_by_size() -> None:
    made: list[int] = []
    stalled = threading.Event()

    def items() -> Iterator[int]:
        for number in range(50):
            made.append(number)
            if len(made) == 3:
                stalled.set()  # 10 + 10 + 10 bytes wait or are taken: the fourth has to wait
            yield number

    belt = ahead(items(), 25, lambda _: 10)
    assert next(belt) == 0
    assert stalled.wait(10)
    lead = []
    for number in belt:
        lead.append(len(made) - number)
    assert max(lead) <= 4 and made == list(range(50))


def test_an_error_arrives_behind_what_came_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("no memory left")

    belt = ahead(items(), 100, lambda _: 1)
    assert [next(belt), next(belt)] == [1, 2]
    with pytest.raises(OSError, match="no memory left"):
        next(belt)


def test_closing_ends_the_thread() -> None:
    made: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            made.append(len(made))
            yield made[-1]

    belt = ahead(endless(), 3, lambda _: 1)
    assert next(belt) == 0
    belt.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "kvtool-ahead"]
    assert len(made) <= 5
