"""Prefetch: a pipeline of two agents by hand, and any log against a plain list of recency."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.analysis.prefetch import simulate_prefetch
from kvtool.analysis.simulate import SimulateConfig, Simulation
from kvtool.analysis.transitions import GROWS, TransitionConfig, learn_transitions, path_of
from kvtool.errors import KvtoolError


def pipeline(sessions):
    """A planner's turn, then four seconds later a coder's, which begins with four other shared blocks."""
    rows = []
    for number in range(sessions):
        start = 10 * number
        rows.append((start, f"s{number}", [1, 2, 3, 4, 100 + number]))
        rows.append((start + 4, f"s{number}", [5, 6, 7, 8, 200 + number]))
    return rows


def test_a_pipelines_next_agent_is_there_when_it_is_asked(log):
    """The first tier holds one agent's blocks. Of each session after training, the coder's four shared
    blocks come ahead; the planner's cannot be foreseen, for nothing of its session was seen before."""
    workload = log(pipeline(40))
    model = learn_transitions(workload, 40, TransitionConfig(0.5, 5))
    result = simulate_prefetch(workload, model, 40, 5, 100)
    assert result.predictions == 20
    assert (result.plain_demand, result.plain_hits) == (20 * 8, 0)
    assert (result.loads, result.used) == (20 * 4, 20 * 4)
    assert (result.demand, result.hits) == (20 * 4, 20 * 4)
    assert result.to_json() == {
        "predictions": 20,
        "prefetched_blocks": 80,
        "used_blocks": 80,
        "recall": 0.5,
        "waste": 0.0,
        "demand_loads": {"without": 160, "with": 80},
        "demand_loads_avoided": 0.5,
        "first_tier_hit_blocks": {"without": 0, "with": 80},
    }


def test_sessions_that_stop_after_training_make_it_waste(log):
    rows = pipeline(20) + [(1000 + 10 * n, f"t{n}", [1, 2, 3, 4, 300 + n]) for n in range(10)]
    workload = log(rows)
    model = learn_transitions(workload, 40, TransitionConfig(0.5, 5))
    result = simulate_prefetch(workload, model, 40, 5, 100)
    # each planner but the first finds one block left by the coder's, which were brought for nothing
    assert (result.predictions, result.loads, result.used) == (10, 40, 0)
    assert (result.plain_demand, result.demand) == (4, 4 + 9 * 3)
    assert result.to_json()["demand_loads_avoided"] == -6.75 and result.to_json()["waste"] == 1.0


def test_the_command_reports_it_and_refuses_what_cannot_be(log):
    workload = log(pipeline(40))
    options = {"capacities": ("10",), "policies": ("lru",), "tiers": (("device", "5"), ("host", "100"))}
    document = Simulation(workload, SimulateConfig(**options, train_fraction=0.5, prefetch=True)).run()
    assert document["prefetch"]["recall"] == 0.5
    assert document["prefetch"]["states"] == 2
    with pytest.raises(KvtoolError, match="learn from"):
        Simulation(workload, SimulateConfig(**options, prefetch=True))
    with pytest.raises(KvtoolError, match="to fetch from"):
        Simulation(workload, SimulateConfig(("10",), train_fraction=0.5, prefetch=True))


def plainly(workload, model, train, first, below, prefetching):
    """(loads, used, demand, hits) with one list of blocks, last used first; its head is the first tier."""
    stack, waiting, totals = [], set(), [0, 0, 0, 0]
    events = [(float(workload.clock[at]), 0, at) for at in range(workload.requests)]
    for at in range(train, workload.requests) if prefetching else ():
        if workload.session[at] < 0:
            continue
        predicted = model.predict(model.state_of(path_of(workload, at)))
        later = [n for n in range(at + 1, workload.requests) if workload.session[n] == workload.session[at]]
        if predicted is None or (later and workload.clock[later[0]] <= workload.clock[at] + predicted[2]):
            continue
        events.append((float(workload.clock[at]) + predicted[2], 1, at))
    for _, ahead, at in sorted(events):
        path = path_of(workload, at).tolist()
        if ahead:
            what = model.predict(model.state_of(path_of(workload, at)))[0]
            if what != GROWS:
                path = [what]
                while workload.parent[path[0]] >= 0:
                    path.insert(0, int(workload.parent[path[0]]))
        upper = stack[:first]
        here = next((i for i, node in enumerate(path) if node not in upper), len(path))
        found = next((i for i, node in enumerate(path) if node not in stack), len(path))
        if ahead:
            path = path[: min(found, first)]
            here = min(here, len(path))
            totals[0] += len(path) - here
            waiting.update(path[here:])
        else:
            totals[1] += len(waiting & set(path[:here]))
            waiting -= set(path)
            if at >= train:
                totals[2] += found - here
                totals[3] += here
        stack = [*path, *(node for node in stack if node not in path)][: first + below]
    return totals


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.lists(st.integers(0, 2), min_size=1, max_size=4)),
        min_size=4,
        max_size=25,
    ),
    st.integers(1, 5),
    st.integers(1, 9),
)
def test_equal_to_a_plain_list_of_recency(log, rows, first, below):
    now, names, requests = 0, {}, []
    for pause, session, symbols in rows:
        now += pause
        path = [tuple(symbols[: i + 1]) for i in range(len(symbols))]
        requests.append((now, f"s{session}", [names.setdefault(prefix, len(names)) for prefix in path]))
    workload = log(requests)
    train = len(rows) // 2
    model = learn_transitions(workload, train, TransitionConfig(0.1, 2, 0.5))
    result = simulate_prefetch(workload, model, train, first, below)
    expected = plainly(workload, model, train, first, below, True)
    assert [result.loads, result.used, result.demand, result.hits] == expected
    assert [0, 0, result.plain_demand, result.plain_hits] == plainly(
        workload, model, train, first, below, False
    )
