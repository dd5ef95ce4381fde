"""A log along its time."""

import numpy as np
import pytest

from kvtool.analysis import timeline
from kvtool.analysis.hit_rates import hit_rates
from kvtool.analysis.timeline import over_time, sessions


def test_intervals_are_equal_and_sum_up(log):
    workload = log([(0, "a", [1, 2]), (1, "a", [1, 2, 3]), (9, "b", [9]), (10, "b", [9, 8])] + [
        (10 + step, "c", [50 + step]) for step in range(1, 5)
    ])  # fmt: skip
    rates = hit_rates(workload)
    shown = over_time(workload, rates)
    assert shown.timed and len(shown.intervals) == 2  # of eight requests, four each
    assert shown.width == pytest.approx(7e6, abs=1)
    assert [one.start for one in shown.intervals] == [0, shown.width]
    assert [one.requests for one in shown.intervals] == [2, 6]
    assert [one.prompt_tokens for one in shown.intervals] == [20, 28]
    assert [one.saved_tokens for one in shown.intervals] == [8, 4]


def test_a_log_without_times_counts_requests(log):
    workload = log([(0, None, [number, number + 1]) for number in range(0, 400, 2)])
    untimed = type(workload)(**{**vars_of(workload), "arrival": np.full(200, -1, np.int64)})
    shown = over_time(untimed, hit_rates(untimed))
    assert not shown.timed and shown.width == 4
    assert [one.requests for one in shown.intervals] == [4] * 50
    assert [one.start for one in shown.intervals] == list(range(0, 200, 4))
    assert sessions(untimed, hit_rates(untimed), named=True) is None


def vars_of(workload):
    return {name: getattr(workload, name) for name in workload.__dataclass_fields__}


def test_the_largest_sessions_stand_in_order_of_their_first_request(log, monkeypatch):
    monkeypatch.setattr(timeline, "SESSIONS", 2)
    monkeypatch.setattr(timeline, "CALLS", 3)
    workload = log(
        [(0, "small", [1])]
        + [(1 + step, "long", [2, 3]) for step in range(6)]
        + [(20, "wide", list(range(10, 30)))]
    )
    rates = hit_rates(workload)
    shown = sessions(workload, rates, named=True)
    assert shown.total == 3
    assert [row.name for row in shown.rows] == ["long", "wide"]
    long = shown.rows[0]
    assert (long.requests, long.prompt_tokens, long.saved_tokens) == (6, 48, 5 * 4)
    assert [call.at for call in long.calls] == [1_000_000, 3_000_000, 6_000_000]  # first, middle, last
    assert [call.saved_tokens for call in long.calls] == [0, 4, 4]
    assert [row.name for row in sessions(workload, rates, named=False).rows] == ["session 1", "session 2"]
