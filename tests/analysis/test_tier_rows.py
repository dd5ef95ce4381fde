"""Tiers against a plain recency list, and the arithmetic of time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.analysis.build import build_workload
from kvtool.analysis.curve import LruCurve
from kvtool.analysis.simulate import SimulateConfig, Simulation
from kvtool.analysis.tier_rows import tier_rows
from kvtool.errors import KvtoolError
from kvtool.requests import BlockIds, Request, Source


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
    rows = tier_rows(workload, LruCurve(workload), [(str(n), size) for n, size in enumerate(sizes)])
    assert [row["written_blocks"] for row in rows] == written


def test_time_saved_is_prefill_less_loads():
    workload = log([[1, 2], [3, 4], [1, 2], [5], [5]])  # the third request finds its blocks one tier below
    rows = tier_rows(workload, LruCurve(workload), [("device", 2), ("host", 4)], 10.0, {"host": 0.5})
    # host: two blocks loaded in 2 s each; of the last one's tokens none is reused, a prompt needs one
    assert [row["tokens"] for row in rows] == [0.0, round(4 / 32, 6)]
    assert [row["seconds_saved"] for row in rows] == [0.0, 0.4 - 4.0]
    assert "seconds_saved" not in tier_rows(workload, LruCurve(workload), [("device", 2)])[0]


def test_speeds_in_bytes_need_a_model():
    config = SimulateConfig(("2",), ("lru",), tiers=(("a", "2"),), tier_speeds=(("a", 100),))
    with pytest.raises(KvtoolError, match="--tier-speed: bytes need --model"):
        Simulation(log([[1, 2]]), config).run()
