"""The reuse model: waits and their cuts, nothing from the future, known hazards found again, JSON."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.analysis.build import build_workload
from kvtool.analysis.fitted_replay import FittedReplay
from kvtool.analysis.reuse_model import EDGES, VIEWS, FitConfig, ReuseModel, fit, index
from kvtool.analysis.waits import Waits, waits_of
from kvtool.cache.reuse_table import (
    DEPTH,
    END,
    GAP,
    HIT,
    NEW,
    OUTPUT,
    PAUSE,
    PROMPT,
    SHIFT,
    TRAITS,
    TURN,
    USES,
    WIDTH,
    code_of,
    with_code,
)
from kvtool.errors import KvtoolError
from kvtool.requests import BlockIds, Request, Source


def log(rows, block_size=128):
    """rows: (seconds, block ids, output tokens)."""
    return build_workload(
        [
            Request(
                id=str(row),
                source=Source("t", row),
                arrival=int(time * 1e6),
                block_ids=BlockIds(np.array(ids), block_size, block_size * len(ids)),
                output_tokens=output,
            )
            for row, (time, ids, output) in enumerate(rows)
        ],
        None,
    )


def codes(waits, row):
    return {trait: code_of(int(waits.traits[row]), trait) for trait in range(len(SHIFT))}


def test_waits_and_traits_of_a_small_log():
    """A chat of two turns beside a single request: literal rows."""
    waits = waits_of(log([(0, [0, 1], 40), (30, [0, 1, 2], 16), (100, [9], None)]))
    rows = sorted(zip(waits.start, waits.duration, waits.ended, waits.blocks, range(9), strict=False))
    seen = [(s, d, bool(e), b) for s, d, e, b, _ in rows]
    assert seen == [
        (0.0, 30.0, True, 1.0),
        (0.0, 30.0, True, 1.0),  # the first two blocks differ in depth and end
        (30.0, 70.0, False, 1.0),
        (30.0, 70.0, False, 1.0),
        (30.0, 70.0, False, 1.0),
        (100.0, 0.001, False, 1.0),
    ]
    tail = next(row for *_, row in rows if codes(waits, row)[TURN] == 1 and codes(waits, row)[END] == 0)
    assert codes(waits, tail) == {
        TURN: 1,
        GAP: 1 + 6,  # 30² / 25 = 36: six doublings
        PROMPT: 2,  # 3 x 128
        OUTPUT: 2,  # 16 tokens
        NEW: 1,
        USES: 0,
        END: 0,
        DEPTH: 2,
        HIT: 0,
        PAUSE: 0,
    }


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(1, 4)), min_size=2, max_size=30),
    st.data(),
)
def test_what_is_known_at_a_time_does_not_depend_on_what_comes_later(steps, data):
    times = np.cumsum([wait for wait, _, _ in steps])
    rows = [
        (int(time), [100 * family + block for block in range(length)], 10 * length)
        for time, (_, family, length) in zip(times, steps, strict=True)
    ]
    at = data.draw(st.integers(0, int(times[-1]) + 1))
    known = waits_of(log(rows)).until(float(at - rows[0][0]))
    past = [row for row in rows if row[0] < at]
    if not past:
        assert not len(known.start)
        return
    alone = waits_of(log(past)).until(float(at - rows[0][0]))
    assert table(known, at) == table(alone, at)


def table(waits, at):
    """Rows without the cut of open waits, which a log that ends earlier makes earlier."""
    cells = zip(
        waits.traits.tolist(),
        waits.start.tolist(),
        np.where(waits.ended, waits.duration, -1.0).tolist(),
        waits.blocks.tolist(),
        strict=True,
    )
    counts = {}
    for trait, start, duration, blocks in cells:
        counts[trait, start, duration] = counts.get((trait, start, duration), 0) + blocks
    return counts


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0.01, 40)), min_size=1, max_size=8),
    st.sets(st.integers(1, 30), max_size=5),
    st.sets(st.integers(1, 80), max_size=5),
)
def test_pieces_cover_each_wait_once(spans, edges, bounds):
    start, duration = (np.array(column) for column in zip(*spans, strict=True))
    edges, bounds = np.array(sorted(edges), float), np.array(sorted(bounds), float)
    flags = np.arange(len(start)) % 2 == 0
    waits = Waits(np.zeros(len(start), np.int64), start, duration, flags, np.ones(len(start)), 90.0, False)
    pieces = waits.pieces(edges, bounds)
    assert np.allclose(np.bincount(pieces.wait, pieces.seconds), duration)
    assert (np.bincount(pieces.wait, pieces.ended) == flags).all()
    for row in range(len(start)):
        mine = pieces.wait == row
        for age in range(len(edges) + 1):
            low, high = [0.0, *edges][age], [*edges, np.inf][age]
            expected = max(min(duration[row], high) - low, 0.0)
            assert pieces.seconds[mine & (pieces.age == age)].sum() == pytest.approx(expected)
        for period in range(len(bounds) + 1):
            low, high = [-np.inf, *bounds][period], [*bounds, np.inf][period]
            expected = max(min(start[row] + duration[row], high) - max(start[row], low), 0.0)
            assert pieces.seconds[mine & (pieces.period == period)].sum() == pytest.approx(expected)


def population(seed=0, size=6000):
    """Short answers: 60 % come back, evenly over time with mean 50 s. Long ones: 10 %, mean 400 s."""
    random = np.random.default_rng(seed)
    long = random.random(size) < 0.5
    traits = np.array([with_code(0, OUTPUT, 10 if each else 3) for each in long], np.int64)
    returns = random.random(size) < np.where(long, 0.1, 0.6)
    delay = np.where(returns, random.exponential(np.where(long, 400.0, 50.0)), np.inf)
    start = np.sort(random.random(size)) * 10000
    end = 12000.0
    ended = start + delay < end
    return Waits(traits, start, np.where(ended, delay, end - start), ended, np.ones(size), end, False), long


def test_known_hazards_are_found_again():
    waits, long = population(size=20000)
    model = fit(waits, config=FitConfig(classes=2, shrink=0.2, views=VIEWS[:1]))
    assert model is not None
    assert model.table.tree.tolist()[0][0] == OUTPUT and 3 <= model.table.tree[0, 1] < 10
    assert model.uses.tolist() == [(~long).sum(), long.sum()]
    assert model.reused[0] == (waits.ended & ~long).sum()
    ages = np.array([1.5, 5.5, 11.5, 20, 32.5, 50, 75])
    for kind, share, mean in ((0, 0.6, 50.0), (1, 0.1, 400.0)):
        alive = 1 - share + share * np.exp(-ages / mean)
        true = share / mean * np.exp(-ages / mean) / alive
        assert model.hazards[kind, : len(ages)] == pytest.approx(true, rel=0.35)


def test_a_general_rise_in_reuse_is_not_taken_for_an_effect_of_age():
    """Everything is reused ten times as often in the second half of the log, whatever its age."""
    random = np.random.default_rng(1)
    start = np.sort(random.random(4000)) * 5000
    early = np.maximum(2500 - start, 0.0)
    need = random.exponential(1.0, 4000)
    delay = np.where(need < early / 2000, need * 2000, early + (need - early / 2000) * 200)
    ended = start + delay < 5000
    waits = Waits(
        np.zeros(4000, np.int64),
        start,
        np.where(ended, delay, 5000 - start),
        ended,
        np.ones(4000),
        5000.0,
        False,
    )
    model = fit(waits, config=FitConfig(classes=1, periods=10))
    assert model is not None
    hazards = model.hazards[0, : np.searchsorted(EDGES, 600)]
    assert hazards.max() / hazards.min() < 1.4
    naive = fit(waits, config=FitConfig(classes=1, periods=1))
    assert naive is not None
    assert naive.hazards[0, 12] > 1.5 * naive.hazards[0, 8] or naive.hazards[0, 12] < naive.hazards[0, 2]


def test_worth_is_the_best_ratio_over_all_spans():
    edges = np.array([10.0, 20.0])
    hazards = np.array([[0.0, 0.05, 0.001], [0.03, 0.01, 0.002]])
    worth = index(hazards, edges)
    for row in range(2):
        for first in range(3):
            best, alive, hits, held = 0.0, 1.0, 0.0, 0.0
            for step, width in list(enumerate([10.0, 10.0, 20.0]))[first:]:
                ends = 1 - np.exp(-hazards[row, step] * width)
                held += width * alive * (1 - ends / 2)
                hits += alive * ends
                alive *= 1 - ends
                best = max(best, hits / held)
            assert worth[row, first] == pytest.approx(best)
    assert worth[0, 0] > 0.01, "a block that waits for its hump is worth something already"
    assert worth[0, 1] > worth[0, 0]


def test_nothing_reused_gives_no_model():
    assert fit(waits_of(log([(0, [0, 1], 5), (4, [2], 5)]))) is None


def test_json_keeps_the_model_and_explains_it():
    waits, _ = population(size=2000)
    model = fit(waits, config=FitConfig(classes=6))
    assert model is not None
    text = model.to_json()
    again = ReuseModel.from_json(text)
    assert again.to_json() == text
    assert (again.table.parameters(32) == model.table.parameters(32)).all()
    rules = json.loads(text)["rules"]
    for tree in range(len(VIEWS)):
        assert sum(rule["uses"] for rule in rules if rule["tree"] == tree) == 2000
    assert rules[0]["when"]["output"][1] < 10 and rules[0]["reused"] == pytest.approx(0.6, abs=0.05)
    for rule in rules:  # every wait falls under exactly its own rule
        inside = np.ones(2000, bool)
        for name, (low, high) in rule["when"].items():
            trait = TRAITS.index(name)
            code = (waits.traits >> SHIFT[trait]) & ((1 << WIDTH[trait]) - 1)
            inside &= (low <= code) & (code <= high)
        assert inside.sum() == rule["uses"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema="other"), "not a kvtool.reuse-model/2"),
        (lambda d: d.update(traits=["turn"]), "traits"),
        (lambda d: d.pop("hazards"), "missing"),
        (lambda d: d["tree"].__setitem__(0, [3, 4, 0, 0]), "fit together"),  # a walk would never end
        (lambda d: d["tree"].__setitem__(1, [-1, 99, 0, 0]), "fit together"),
        (lambda d: d["edges"].reverse(), "fit together"),
        (lambda d: d["roots"].pop(0), "fit together"),
        (lambda d: d["roots"].append(len(d["tree"])), "fit together"),
        (lambda d: d["hazards"][0].__setitem__(0, -1.0), "fit together"),
    ],
)
def test_a_damaged_file_is_named(change, message):
    model = fit(population(size=2000)[0], config=FitConfig(classes=2))
    assert model is not None
    document = json.loads(model.to_json())
    change(document)
    with pytest.raises(KvtoolError, match=rf"(?s)reuse\.json.*{message}"):
        ReuseModel.from_json(json.dumps(document), "reuse.json")
    with pytest.raises(KvtoolError, match="not JSON"):
        ReuseModel.from_json("{", "reuse.json")


def chats(seed, requests=1500):
    """Chats that are answered within a minute when the last answer was short, and end after a long one."""
    random = np.random.default_rng(seed)
    waiting, rows, number = [], [], 0
    for step in range(requests):
        due = [chat for chat in waiting if chat[0] <= step]
        if due:
            chat = due[0]
            waiting.remove(chat)
            path = [*chat[1], number, number + 1]
        else:
            path = [number, number + 1]
        number += 2
        short = bool(random.random() < 0.4)
        rows.append((float(step), path, 20 if short else 800))
        if short:
            waiting.append((step + int(random.integers(20, 60)), path))
    return log(rows)


def test_a_model_learned_in_the_first_half_beats_lru_in_the_second():
    workload = chats(0)
    from kvtool.analysis.replay import replay
    from kvtool.cache.policies import POLICIES

    half = workload.requests // 2
    lru = replay(workload, POLICIES.load("lru"), 60)[half:].sum()
    learned = FittedReplay(workload, half).matched(60)[half:].sum()
    frozen = FittedReplay(workload, half, learn=False).matched(60)[half:].sum()
    assert learned > 1.5 * lru and frozen > 1.5 * lru


def test_the_replay_of_a_prefix_is_the_prefix_of_the_replay():
    workload = chats(3, 600)
    whole = FittedReplay(workload, 200).matched(40)
    part = FittedReplay(workload.select(0, 400), 200).matched(40)
    assert (whole[:400] == part).all()
