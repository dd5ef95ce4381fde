"""Load or compute, and how long to wait: from measurements alone."""

from kvtool.cache.tiers import Tier
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
