"""A prewarmed start: stored blocks found by their tokens, strangers in their slots, equal to a longer log."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.analysis.build import build_workload
from kvtool.analysis.fitted_replay import FittedReplay
from kvtool.analysis.replay import pool_state, replay
from kvtool.analysis.resident import Stored, resident_in, stored_of
from kvtool.analysis.simulate import SimulateConfig, Simulation
from kvtool.analysis.simulation_report import present
from kvtool.analysis.timed import TimedConfig, replay_timed
from kvtool.cache.policies import POLICIES
from kvtool.cache.pool import Pool
from kvtool.errors import KvtoolError
from kvtool.requests import Request, Source

LRU = POLICIES.load("lru")


class Ids:
    """Stands in for an encoder: prompts are token ids already."""

    fingerprint = "ids"

    def encode(self, requests):
        return [each.token_ids for each in requests]


def log(prompts, size=2, models="m", tenants=None):
    """Prompts of token ids, in blocks of `size`."""
    return build_workload(
        [
            Request(
                id=str(row),
                source=Source("t", row),
                model=models[row % len(models)],
                tenant=None if tenants is None else tenants[row % len(tenants)],
                token_ids=np.array(prompt, np.uint32),
            )
            for row, prompt in enumerate(prompts)
        ],
        Ids(),
        size,
    )


def test_what_two_requests_shared_serves_the_first_of_the_next_log():
    stored = stored_of(log([[1, 1, 2, 2, 3, 3], [1, 1, 2, 2, 9, 9], [7, 7, 1], [7, 7, 2]]))
    assert stored.words.tolist() == [[1, 1], [2, 2], [7, 7]] and stored.hits.tolist() == [2, 2, 2]
    assert stored.parent.tolist() == [-1, 0, -1]
    today = log([[1, 1, 2, 2, 5, 5], [2, 2, 0], [1, 1, 2, 2, 5, 5]])
    resident = resident_in(today, stored)
    assert resident.known == 2 and len(resident.parent) == today.distinct_blocks + 1
    assert replay(today, LRU, 100).tolist() == [0, 0, 3]
    assert replay(today, LRU, 100, resident=resident).tolist() == [2, 0, 3]
    assert replay_timed(today, LRU, 100, TimedConfig(), resident).matched.tolist() == [2, 0, 3]
    assert FittedReplay(today).matched(100, resident).tolist() == [2, 0, 3]
    # without room for all, the most used are there, and of equals the first blocks of prompts
    assert (
        replay(today, LRU, 3, resident=resident)[0] == 2 and replay(today, LRU, 1, resident=resident)[0] == 1
    )


def test_strangers_take_slots_until_they_are_evicted():
    """Three slots, two of them a stranger's: what fits beside it is what the policy takes from it."""
    stored = Stored(
        2, np.array([[8, 8], [9, 9]], np.uint32), np.array([-1, 0]), ["", ""], np.array([2.0, 2.0])
    )
    today = log([[1, 1], [2, 2], [1, 1]])
    state = pool_state(today, LRU, 3, resident_in(today, stored))
    assert [int(node) for node in state.owner] == [2, 3, -1] and state.depth[2:].tolist() == [0, 1]
    assert replay(today, LRU, 3, resident=resident_in(today, stored)).tolist() == [0, 0, 1]


def test_tenants_stay_apart_and_models_do_not():
    stored = Stored(2, np.array([[1, 1]], np.uint32), np.array([-1]), ["x"], np.array([2.0]))
    today = log([[1, 1, 5]] * 4, models="mn", tenants=["x", "x", "y", "y"])
    assert replay(today, LRU, 9).tolist() == [0, 0, 0, 0]
    assert replay(today, LRU, 9, resident=resident_in(today, stored)).tolist() == [1, 1, 0, 0]


def test_other_blocks_are_refused():
    stored = stored_of(log([[1, 1, 2, 2], [1, 1, 2, 2]], size=4))
    with pytest.raises(KvtoolError, match="blocks of 4 tokens"):
        resident_in(log([[1, 1]]), stored)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=8),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=12),
    st.integers(1, 9),
    st.sampled_from(["lru", "cost", "lfu-da"]),
)
def test_equal_to_the_runtimes_pool_after_it_adopted_the_blocks(before, after, capacity, policy):
    """The slow way: a Pool that adopts what is stored, then serves request by request."""
    stored = stored_of(log([[token for token in prompt for _ in (0, 1)] for prompt in before]), 1)
    today = log([[token for token in prompt for _ in (0, 1)] for prompt in after])
    resident = resident_in(today, stored)
    pool = Pool(capacity, POLICIES.load(policy))
    for parent in resident.parent.tolist():
        pool.add_node(parent)
    pool.adopt([(node, slot) for slot, node in enumerate(resident.nodes.tolist()[:capacity])])
    hits = []
    for request in range(today.requests):
        path = today.nodes[today.offsets[request] : today.offsets[request + 1]].tolist()
        lease = pool.acquire(path, min(len(path), capacity), float(today.clock[request]), None)
        assert lease is not None
        pool.commit(lease, len(lease.slots))
        hits.append(lease.hit)
        pool.release(lease)
        pool.check()
    assert replay(today, POLICIES.load(policy), capacity, resident=resident).tolist() == hits


def test_the_document_has_both_starts_side_by_side():
    yesterday = log([[1, 1, 2, 2, 3, 3]] * 2)
    today = log([[1, 1, 2, 2, 5, 5], [1, 1, 2, 2, 6, 6]])
    resident = resident_in(today, stored_of(yesterday))
    config = SimulateConfig(("4",), ("lru", "belady"))
    lru, optimum = (document := Simulation(today, config, None, resident).run())["rows"]
    assert document["resident"] == {"blocks": 3, "in_log": 2}
    assert (lru["hit_blocks"], lru["prewarmed"]["hit_blocks"], lru["prewarmed"]["blocks"]) == (2, 4, 3)
    assert lru["tokens"] == round(4 / 12, 6) and lru["prewarmed"]["tokens"] == round(8 / 12, 6)
    assert "prewarmed" not in optimum
    config = SimulateConfig(("6",), ("lru",), replicas=2, routing="round-robin")
    (split,) = Simulation(today, config, None, resident).run()["rows"]
    assert (split["hit_blocks"], split["prewarmed"]["hit_blocks"]) == (0, 4), "each replica has them"


def test_tiers_have_both_starts_too_and_say_so():
    yesterday = log([[1, 1, 2, 2, 3, 3]] * 2)
    today = log([[1, 1, 2, 2, 5, 5], [1, 1, 2, 2, 6, 6]])
    resident = resident_in(today, stored_of(yesterday))
    config = SimulateConfig(("4",), ("lru", "belady"), tiers=(("device", "1"), ("host", "9")))
    document = Simulation(today, config, None, resident).run()
    device, host = document["tiers"]
    assert (device["hit_blocks"], host["hit_blocks"]) == (1, 0)  # what the first tier cannot hold is not kept
    assert (device["prewarmed"]["hit_blocks"], host["prewarmed"]["hit_blocks"]) == (2, 2)
    assert host["prewarmed"]["tokens"] == round(4 / 12, 6)
    table = next(table for table in present(document, []).tables if table.title == "Tiers")
    at = [column.title for column in table.columns].index("prewarmed hit rate")
    assert [row[at] for row in table.rows] == [device["prewarmed"]["tokens"], host["prewarmed"]["tokens"]]
