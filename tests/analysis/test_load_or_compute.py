"""Load or compute, by hand: seconds a token, what pays, and what a plan saves."""

import numpy as np
import pytest

from kvtool.analysis.load_or_compute import Speeds, seconds_saved, ways
from kvtool.analysis.plan import Forecast, Plan


def plan_of(flops, expected, tier, size=2) -> Plan:
    count = len(flops)
    saved = float(np.dot(flops, expected))
    return Plan(
        block_size=size,
        node=np.arange(count),
        tenants=[""],
        tenant=np.zeros(count, np.int32),
        parent=np.arange(count) - 1,
        depth=np.arange(count, dtype=np.int32),
        tokens=np.ones((count, size), np.uint32),
        hits=np.array(expected, np.int64),
        expected=np.array(expected, float),
        bytes=np.full(count, 40),
        flops=np.array(flops, float),
        tier=np.array(tier, np.int8),
        forecast=Forecast(100, 0.0, 0.0, 0.0, None, 2 * count, 0, saved, 0, 0, 0, 0, 0),
    )


def test_seconds_a_token_by_hand() -> None:
    plan = plan_of([100, 300], [3, 1], [2, 2])
    speeds = Speeds(compute=1000.0, tiers={"host": 800.0, "disk": 400.0}, decode=0.004)
    host, disk = ways(plan, speeds, memory_bytes=80)
    assert host.compute == disk.compute == pytest.approx((3 * 100 + 300) / 4 / 2 / 1000)  # 75 ms
    assert (host.bytes_per_token, disk.bytes_per_token) == (40, 20)
    assert host.load == pytest.approx(40 / 800) and host.pays  # 50 ms
    assert disk.load == pytest.approx(20 / 400 + 0.002 + 40 / 800) and not disk.pays  # 102 ms


def test_what_a_plan_saves_is_its_prefill_less_its_loads_by_tier() -> None:
    plan = plan_of([100, 300, 500], [4, 2, 1], [0, 1, 2])
    speeds = Speeds(compute=1000.0, tiers={"host": 8000.0, "disk": 4000.0}, decode=0.0)
    found = ways(plan, speeds, memory_bytes=80)
    loads = 2 * (2 * 40 / 8000 + 1 * (20 / 4000 + 40 / 8000))
    assert seconds_saved(plan, speeds, found) == pytest.approx((400 + 600 + 500) / 1000 - loads)
