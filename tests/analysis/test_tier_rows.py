"""Tiers against a plain recency list, and the arithmetic of time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.analysis.build import build_workload
from kvtool.analysis.simulate import SimulateConfig, Simulation
from kvtool.analysis.tier_rows import tier_rows
from kvtool.analysis.tiered import replay_tiers
from kvtool.cache.policies import POLICIES
from kvtool.errors import KvtoolError
from kvtool.requests import BlockIds, Request, Source

LRU = POLICIES.load("lru")


def log(paths):
    """Prompts as lists of symbols, one block of 4 tokens each and one token more."""
    names, requests = {}, []
    for row, path in enumerate(paths):
        ids = [names.setdefault(tuple(path[: i + 1]), len(names)) for i in range(len(path))]
        requests.append(
            Request(id=str(row), source=Source("t", row), block_ids=BlockIds(np.array(ids), 4, 4 * len(ids)))
        )
    return build_workload(requests, None)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=20),
    st.lists(st.integers(4, 9), min_size=1, max_size=3),
)
def test_writes_are_the_pushes_of_a_plain_list(paths, sizes):
    """Every tier has room for a whole prompt, so that nothing passes through one."""
    workload = log(paths)
    tiers: list[list[int]] = [[] for _ in sizes]
    written = [0] * len(sizes)
    for request in range(workload.requests):
        path = workload.nodes[workload.offsets[request] : workload.offsets[request + 1]].tolist()
        known = [node for tier in tiers for node in tier]
        found = next((i for i, node in enumerate(path) if node not in known), len(path))
        assert not set(path[found:]) & set(known)
        written[0] += sum(node not in tiers[0] for node in path)
        tiers = [[node for node in tier if node not in path] for tier in tiers]
        carried = path
        for number, (tier, size) in enumerate(zip(tiers, sizes, strict=True)):
            if number:
                written[number] += len(carried)
            tier[:0] = carried
            carried = tier[size:]
            del tier[size:]
    tiered = replay_tiers(workload, LRU, sizes)
    rows = tier_rows(workload, tiered, [(str(n), size) for n, size in enumerate(sizes)])
    assert [row["written_blocks"] for row in rows] == written


def test_time_saved_is_prefill_less_loads():
    workload = log([[1, 2], [3, 4], [1, 2], [5], [5]])  # the third request finds its blocks one tier below
    tiers = [("device", 2), ("host", 4)]
    tiered = replay_tiers(workload, LRU, [2, 4])
    rows = tier_rows(workload, tiered, tiers, slice(None), 10.0, {"host": 0.5}, {"host": 0.25})
    # host: two blocks in 2 s each after a wait; the last one's tokens are not reused, a prompt needs one
    assert [row["tokens"] for row in rows] == [0.0, round(4 / 32, 6)]
    assert [row["hit_blocks"] for row in rows] == [1, 2]
    assert [row["seconds_saved"] for row in rows] == [0.0, 0.4 - 4.25]
    assert rows[1]["load_seconds"] == rows[1]["load_p99_seconds"] == 4.25 and "load_seconds" not in rows[0]
    plain = tier_rows(workload, tiered, tiers)
    assert "seconds_saved" not in plain[0] and "load_seconds" not in plain[1]
    late = tier_rows(workload, tiered, tiers, slice(3, None))
    assert [row["hit_blocks"] for row in late] == [1, 0], "only the measured part counts"


def test_speeds_in_bytes_need_a_model():
    config = SimulateConfig(("2",), ("lru",), tiers=(("a", "2"),), tier_speeds=(("a", 100),))
    with pytest.raises(KvtoolError, match="--tier-speed: bytes need --model"):
        Simulation(log([[1, 2]]), config).run()
