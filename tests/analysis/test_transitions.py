"""Transitions: states are shared prefixes, counts and waits literal, nothing comes from the tested part."""

from collections import Counter

from kvtool.analysis.transitions import ANY, ENDS, GROWS, TransitionConfig, learn_transitions

PLAN, CODE = 1, 2


ROWS = [
    (0, "a", [PLAN, 10]),
    (1, "b", [PLAN, 11]),
    (3, "a", [CODE, 20]),
    (5, "b", [CODE, 21]),
    (6, "a", [CODE, 20, 22]),
    (9, "c", [PLAN, 12]),
    # the tested part
    (10, "b", [PLAN, 11]),
    (11, "c", [PLAN, 12, 13]),
    (12, "d", [PLAN, 14]),
]


def test_states_counts_and_waits_of_a_small_log(log):
    workload = log(ROWS)
    model = learn_transitions(workload, 6, TransitionConfig(0.5, 1, 0.5, 1.0))
    plan, code = int(workload.nodes[0]), int(workload.nodes[4])
    assert model.states.nonzero()[0].tolist() == [plan, code]
    assert model.follows == {
        plan: Counter({code: 2, ENDS: 1}),
        code: Counter({GROWS: 1, ENDS: 2}),
        ANY: Counter({code: 2, GROWS: 1, ENDS: 3}),
    }
    assert model.waits[plan, code] == [3.0, 4.0] and model.waits[code, GROWS] == [3.0]
    assert model.predict(plan) == (code, 2 / 3, 3.5)
    assert model.predict(code) is None, "it goes on in one case of three"
    assert model.predict(int(workload.nodes[1])) is None, "unknown: all states together, two of six"


def test_a_state_needs_evidence_of_its_own_and_growing_a_prompt_to_grow(log):
    model = learn_transitions(log(ROWS), 6, TransitionConfig(0.3, 4, 0.5, 0.5))
    code = int(log(ROWS).nodes[4])
    assert model.predict(code) == (code, 2 / 6, 1.75), "with three transitions the state counts for nothing"
    alone = learn_transitions(
        log([(t, "a", [1, 2, *range(3, 3 + t)]) for t in range(1, 4)]), 3, TransitionConfig(0.5, 1)
    )
    assert alone.predict(-1) == (GROWS, 2 / 3, 0.8)
    assert alone.predict(-1, grows=False) is None


def test_what_comes_after_the_training_part_changes_nothing(log):
    model = learn_transitions(log(ROWS), 6)
    other = learn_transitions(log([*ROWS[:6], (10, "a", [PLAN, 10]), (11, "e", [CODE, 20, 22])]), 6)
    assert (model.follows, model.waits) == (other.follows, other.waits)
