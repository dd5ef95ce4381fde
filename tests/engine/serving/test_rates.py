"""Load or compute, and how long to wait: from measurements alone."""

from collections import Counter
from unittest.mock import MagicMock

from kvtool.cache.tiers import Move, Tier
from kvtool.engine.serving.loading import Loads
from kvtool.engine.serving.rates import LEAST, PATIENCE, TRY_AGAIN, Rates

DISK_ONLY = [Tier.DEVICE, Tier.HOST, Tier.DISK, Tier.DISK]


def test_without_measurements_everything_is_loaded_and_waited_for() -> None:
    rates = Rates(block_size=16)
    assert rates.worth_loading(DISK_ONLY) == 4
    assert rates.patience(100) == PATIENCE


def test_patience_is_what_computing_would_take() -> None:
    rates = Rates(block_size=16)
    rates.computed(320, 3.2)  # 10 ms a token
    assert rates.patience(10) == 16 * 10 * 0.01
    assert rates.patience(0) == LEAST
    rates.computed(4, 100.0)  # a decode step says nothing about prefill
    assert rates.patience(10) == 1.6
    rates.computed(320, 6.4)
    assert rates.patience(10) == 16 * 10 * (0.01 + 0.2 * 0.01)


def test_a_disk_that_is_slower_than_computing_is_left_out_but_memory_is_not() -> None:
    rates = Rates(block_size=16)
    rates.computed(320, 3.2)  # a block in 0.16 s
    rates.loaded([Tier.DISK] * 4, 0.4)  # 0.1 s
    assert rates.worth_loading(DISK_ONLY) == 4
    for _ in range(20):
        rates.loaded([Tier.DISK] * 4, 4.0)  # 1 s
    assert rates.worth_loading(DISK_ONLY) == 2
    assert rates.worth_loading([Tier.DEVICE, Tier.HOST]) == 2


def test_a_slow_disk_is_tried_again_now_and_then() -> None:
    rates = Rates(block_size=16)
    rates.computed(320, 3.2)
    rates.loaded([Tier.SHARDS], 100.0)
    tried = [rates.worth_loading([Tier.SHARDS]) for _ in range(2 * TRY_AGAIN)]
    assert tried.count(1) == 2 and tried.count(0) == 2 * TRY_AGAIN - 2


def test_blocks_from_memory_do_not_hide_how_slow_a_disk_is() -> None:
    rates = Rates(block_size=16)
    rates.computed(320, 3.2)
    rates.loaded([Tier.HOST] * 9 + [Tier.DISK], 1.0)
    assert rates.worth_loading([Tier.DISK]) == 0
    assert rates.worth_loading([Tier.HOST] * 9) == 9


class OneBad:
    """A read of four blocks, the second of which is bad: one leads."""

    def arrived(self) -> int:
        return 1

    def failed(self) -> list[int]:
        return [1]

    def done(self) -> bool:
        return True

    def place(self, count: int) -> None:
        assert count == 1


def test_a_bad_block_does_not_make_the_disk_look_slow() -> None:
    rates = Rates(block_size=16)
    rates.computed(320, 3.2)  # a block in 0.16 s
    store, pool = MagicMock(), MagicMock()
    store.read.return_value = OneBad()
    loads = Loads(pool, store, rates, Counter())
    lease = MagicMock(loads=[Move(node, Tier.DISK, node, Tier.DEVICE, node) for node in range(4)])
    loads.begin(lease, 10.0, None)
    assert len(loads.poll(10.4)) == 1  # 0.1 s a block
    assert rates.worth_loading(DISK_ONLY) == 4
