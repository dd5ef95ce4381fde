"""Routers against plain loops, and what each of them is for."""

import numpy as np
import pytest

from kvtool.analysis.build import build_workload
from kvtool.analysis.replay import replay
from kvtool.analysis.routing import ROUTINGS, RoutingConfig, replay_replicas
from kvtool.cache.policies import POLICIES
from kvtool.requests import BlockIds, Request, Source

LRU = POLICIES.load("lru")


@pytest.fixture(scope="module")
def dialogues():
    """Sixty sessions of five turns, interleaved; all share the first block, nothing else."""
    random = np.random.default_rng(5)
    names, requests = {}, []
    for turn in range(5):
        for session in random.permutation(60):
            path = ["system", *((int(session), n) for n in range(2 * turn + 2))]
            ids = [names.setdefault(tuple(path[: i + 1]), len(names)) for i in range(len(path))]
            requests.append(
                Request(
                    id="",
                    source=Source("t", len(requests)),
                    session=f"s{session}",
                    block_ids=BlockIds(np.array(ids), 4, 4 * len(ids)),
                )
            )
    return build_workload(requests, None)


def found(workload, routing, replicas=4, capacity=10_000, **options):
    return replay_replicas(workload, LRU, capacity, RoutingConfig(replicas, routing, **options))


@pytest.mark.parametrize("routing", ROUTINGS)
def test_one_replica_is_one_cache(dialogues, routing):
    for capacity in (7, 100, 10_000):
        routed = found(dialogues, routing, replicas=1, capacity=capacity)
        assert (routed.matched == replay(dialogues, LRU, capacity)).all()
        assert (routed.replica == 0).all()


@pytest.mark.parametrize("routing", ROUTINGS)
def test_each_replica_replays_its_own_requests_with_its_share_of_the_capacity(dialogues, routing):
    routed = found(dialogues, routing, replicas=3, capacity=300)
    for replica in range(3):
        mine = np.flatnonzero(routed.replica == replica)
        alone = {}
        cache, matched = [], []
        for request in mine:
            path = dialogues.nodes[dialogues.offsets[request] : dialogues.offsets[request + 1]].tolist()
            matched.append(next((i for i, node in enumerate(path) if node not in cache), len(path)))
            cache = (path + [node for node in cache if node not in alone and node not in path])[:100]
        assert routed.matched[mine].tolist() == matched


def test_affinity_keeps_sessions_whole_and_chance_does_not(dialogues):
    most = int(replay(dialogues, LRU, 10_000).sum())
    hits = {routing: int(found(dialogues, routing).matched.sum()) for routing in ROUTINGS}
    for routing in ("sticky", "hash", "prefix"):
        assert hits[routing] == most - 3, f"{routing} loses only the common block, once per further replica"
    assert hits["random"] < 0.7 * most and hits["round-robin"] < 0.7 * most


def test_loads_are_balanced_and_random_is_seeded(dialogues):
    for routing in ("sticky", "prefix"):
        routed = found(dialogues, routing)
        assert routed.load_over_mean(dialogues.prompt_tokens, 4) < 1.25
    first = found(dialogues, "random", seed=1).replica
    assert (first == found(dialogues, "random", seed=1).replica).all()
    assert (first != found(dialogues, "random", seed=2).replica).any()
    assert found(dialogues, "round-robin").replica[:6].tolist() == [0, 1, 2, 3, 0, 1]


def test_prefix_routing_yields_to_load():
    """All requests share two blocks: without a bound one replica would take them all."""
    requests = [
        Request(id="", source=Source("t", row), block_ids=BlockIds(np.array([0, 1, 10 + row]), 4, 12))
        for row in range(40)
    ]
    workload = build_workload(requests, None)
    bounded = found(workload, "prefix", replicas=2)
    assert np.bincount(bounded.replica).max() <= 26
    free = found(workload, "prefix", replicas=2, bound=10.0)
    assert np.bincount(free.replica, minlength=2).tolist() == [40, 0]


def test_prefix_routing_keeps_what_is_there_while_the_load_is_even():
    """A replica takes one more as long as it has not had more than its share."""
    rows = [[0, 1, 2], [10, 11, 12], [10, 11, 12], [0, 1, 2]]
    requests = [
        Request(id="", source=Source("t", row), block_ids=BlockIds(np.array(ids), 4, 12))
        for row, ids in enumerate(rows)
    ]
    routed = found(build_workload(requests, None), "prefix", replicas=2)
    assert routed.replica.tolist() == [0, 1, 1, 0]
    assert routed.matched.tolist() == [0, 0, 3, 3]


def test_a_replica_that_joins_takes_keys_and_moves_none_between_the_others(dialogues):
    three, four = found(dialogues, "hash", replicas=3).replica, found(dialogues, "hash", replicas=4).replica
    assert ((four == three) | (four == 3)).all()
    assert 0 < (four == 3).mean() < 0.5


def test_cost_goes_where_least_is_to_compute_in_all():
    """The long prompt's replica is loaded, so the next ones go elsewhere, until the saving outweighs that."""

    def prompt(row, ids):
        return Request(id="", source=Source("t", row), block_ids=BlockIds(np.array(ids), 4, 4 * len(ids)))

    rows = [list(range(10)), [90], [91, 92], list(range(10)), list(range(10))]
    routed = found(build_workload([prompt(*row) for row in enumerate(rows)], None), "cost", replicas=2)
    assert routed.replica.tolist() == [0, 1, 1, 0, 0], "loads 40:0, 40:4, 40:12, then 0 to compute against 40"
    assert routed.matched.tolist() == [0, 0, 0, 10, 10]
