"""How often blocks will be used: chances by hand, and what is shared outlives what ended."""

import numpy as np
import pytest

from kvtool.analysis.build import build_workload
from kvtool.analysis.expected import chance_of_use
from kvtool.analysis.learned import learn
from kvtool.analysis.plan import PlanConfig, make_plan
from kvtool.analysis.reuse_model import ReuseModel
from kvtool.cache.reuse_table import TRAITS, USES, ReuseTable
from kvtool.requests import Request, Source


class Ids:
    """Stands in for an encoder: prompts are token ids already."""

    fingerprint = "ids"

    def encode(self, requests):
        return [each.token_ids for each in requests]


def workload_of(prompts: list[tuple[float, list[int]]]):
    return build_workload(
        [
            Request(
                id=str(number),
                source=Source("log", number + 1),
                arrival=int(seconds * 1e6),
                token_ids=np.array(tokens, np.uint32),
            )
            for number, (seconds, tokens) in enumerate(prompts)
        ],
        Ids(),
        2,
    )


def test_the_chance_is_that_of_meeting_the_class_hazard_from_the_blocks_age_on() -> None:
    """Used once, 0.01 a second below 10 s and 0.002 above; used more often, 0.001 throughout."""
    tree = np.array([[USES, 0, 1, 2], [-1, 0, 0, 0], [-1, 1, 0, 0]])
    table = ReuseTable(tree, np.array([10.0]), np.zeros((2, 2)), True)
    model = ReuseModel(table, np.array([[0.01, 0.002], [0.001, 0.001]]), np.ones(2), np.ones(2), 100.0)
    assert TRAITS[USES] == "uses"
    log = [(0, [1, 1, 2, 2, 9]), (50, [3, 3, 9]), (94, [4, 4, 9]), (100, [1, 1, 5, 5, 9])]
    workload = workload_of(log)
    chances = dict(zip(workload.words[:, 0].tolist(), chance_of_use(workload, model).tolist(), strict=True))
    assert chances[1] == pytest.approx(1 - np.exp(-0.001 * 100))
    assert chances[2] == pytest.approx(1 - np.exp(-0.002 * 100))  # 100 s ago
    assert chances[4] == pytest.approx(1 - np.exp(-(0.01 * 4 + 0.002 * 96)))  # 6 s ago
    assert chances[5] == pytest.approx(1 - np.exp(-(0.01 * 10 + 0.002 * 90)))


def test_a_plan_expects_the_shared_head_again_and_not_the_talks_that_ended() -> None:
    """300 talks of three turns each under one head, at random times; few overlap."""
    chance = np.random.default_rng(5)
    head, start, log = [1] * 8, 0.0, []
    for talk in range(300):
        start += chance.exponential(60)
        at = start
        for turn in range(3):
            log.append((at, [*head, *[10 + talk] * 4, *[500 + talk] * (2 * turn), 0]))
            at += chance.exponential(10)
    log.sort(key=lambda row: row[0])
    workload = workload_of(log)
    model = learn(workload)
    assert model is not None
    plain = make_plan(workload, PlanConfig(), lambda _: 10, 1000)
    plan = make_plan(workload, PlanConfig(), lambda _: 10, 1000, reuse=model)
    assert plain.expected.tolist() == plain.hits.tolist() and len(plain) == len(plan)
    shared = plan.tokens[:, 0] == 1
    assert (plan.expected[shared] > 0.9 * plan.hits[shared]).all()
    assert (plan.expected[~shared] < 0.3 * plan.hits[~shared]).mean() > 0.9
    inner = plan.parent >= 0
    below = np.bincount(plan.parent[inner], plan.expected[inner], len(plan))
    assert (plan.expected >= below - 1e-9).all()
    rate = plan.forecast.hit_rate_expected
    assert rate is not None and rate == pytest.approx(plan.expected.sum() * 2 / workload.prompt_tokens.sum())
    assert rate < plan.forecast.hit_rate
    few = make_plan(workload, PlanConfig({"disk": 40}), lambda _: 10, 1000, reuse=model)
    assert (few.tokens == 1).all() and len(few) == 4
