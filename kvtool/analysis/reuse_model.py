"""The fitted reuse model: how soon a block is used again, by what is known when its request ends.

Every use of a block starts a wait that ends with its next use, or is cut off by the end of the log. A
tree splits these waits by the traits of the use, greedily, where the split explains most (piecewise
exponential survival, all ages at once); a leaf's hazards are shrunk towards its parent's, raised or lowered
to the leaf's own level. Four trees, each of which sees some of the traits, are averaged: what one of them
took from chance the others do not repeat. Times of day when everything is reused more are divided out
first: only what differs between blocks that wait at the same time helps to choose among them.

A class is worth, at an age, the best ratio of expected hits to time held over all times one could plan
to hold it from now (the Gittins index): it needs no horizon to tune and sees that a person takes a while
to answer.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtool.analysis.waits import Waits
from kvtool.cache.reuse_table import (
    CLASS_SHIFT,
    CLASS_WIDTH,
    DEPTH,
    END,
    GAP,
    HIT,
    MOST_TREES,
    NEW,
    OUTPUT,
    PAUSE,
    PROMPT,
    SHIFT,
    TRAITS,
    TURN,
    USES,
    WIDTH,
    ReuseTable,
)
from kvtool.compiling import njit
from kvtool.errors import KvtoolError

SCHEMA = "kvtool.reuse-model/2"

EDGES = np.array([3, 8, 15, 25, 40, 60, 90, 140, 220, 350, 600, 1000, 1800, 3600, 7200, 21600], float)
"""Ages in seconds at which hazards step."""

Floats = NDArray[np.float64]

CODES = 1 << max(WIDTH)

VIEWS = (
    tuple(range(len(TRAITS))),
    (USES, END, TURN, GAP, PAUSE),
    (USES, END, PROMPT, OUTPUT, NEW),
    (USES, END, DEPTH, HIT),
)
"""Traits that each tree sees: all; the person's rhythm; the request's size; the block's place."""


@dataclass(frozen=True)
class FitConfig:
    """classes: leaves of a tree at most. events: reuses, weighted, that a leaf needs. shrink: reuses that the
    parent's shape counts for, per age. level: reuses that the parent's level counts for. periods: equal spans
    of the log whose general level is divided out. gain: log-likelihood that a split must add. views: the
    traits that each tree sees."""

    classes: int = 32
    events: float = 15.0
    shrink: float = 10.0
    level: float = 3.0
    periods: int = 8
    gain: float = 2.0
    views: tuple[tuple[int, ...], ...] = VIEWS


@dataclass(frozen=True)
class ReuseModel:
    """What was learned: the table to rank by, and per class of each tree the evidence it rests on.

    hazards: reuses per second, float64 [classes, ages + 1]; uses, reused: float64 [classes], block uses
    of the class in the log and how many of them were followed by another.
    """

    table: ReuseTable
    hazards: Floats
    uses: Floats
    reused: Floats
    until: float
    """Clock of the log up to which it was fitted, seconds."""

    def hazards_of(self, traits: NDArray[np.int64]) -> Floats:
        """Reuses per second by age, the trees' mean, of classified traits [n]: float64 [n, ages + 1]."""
        first, mask = self.table.first_classes, (1 << CLASS_WIDTH) - 1
        each = (
            self.hazards[at + ((traits >> (CLASS_SHIFT + CLASS_WIDTH * tree)) & mask)]
            for tree, at in enumerate(first)
        )
        mean: Floats = sum(each, np.zeros(1)) / len(first)
        return mean

    def rules(self) -> list[dict[str, Any]]:
        """One row per class, most valuable fresh block first: when it applies and what was seen.

        A block is in one class of each tree; tree: whose class it is.
        when: bounds of trait codes, such as {"uses": [1, 3]}; best_worth, best_age: where its worth peaks.
        """
        rows = []
        for tree, at, when in _paths(self.table):
            worth = self.table.worth[at]
            ages = [0.0, *self.table.edges.tolist()]
            rows.append(
                {
                    "class": at,
                    "tree": tree,
                    "when": when,
                    "uses": round(float(self.uses[at]), 1),
                    "reused": round(float(self.reused[at] / max(self.uses[at], 1.0)), 4),
                    "worth_at_first": float(f"{worth[0]:.4g}"),
                    "best_worth": float(f"{worth.max():.4g}"),
                    "best_age": ages[int(worth.argmax())],
                }
            )
        return sorted(rows, key=lambda row: (-row["worth_at_first"], row["class"]))

    def to_json(self) -> str:
        """The model as it lies beside shards: same model, same bytes."""
        document = {
            "schema": SCHEMA,
            "traits": list(TRAITS),
            "partial_ends": self.table.partial_ends,
            "until": self.until,
            "roots": list(self.table.roots),
            "tree": self.table.tree.tolist(),
            "edges": self.table.edges.tolist(),
            "hazards": self.hazards.tolist(),
            "uses": self.uses.tolist(),
            "reused": self.reused.tolist(),
            "rules": self.rules(),
        }
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, name: str = "reuse model") -> "ReuseModel":
        """Read what `to_json` wrote. KvtoolError if it is none or its tables do not fit together."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise KvtoolError(f"{name}: not JSON: {error}") from error
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise KvtoolError(f"{name}: not a {SCHEMA} document")
        if document.get("traits") != list(TRAITS):
            raise KvtoolError(f"{name}: traits are not this version's", "fit the model again")
        try:
            tree, roots = np.array(document["tree"], np.int64), np.array(document["roots"], np.int64)
            edges, hazards = np.array(document["edges"], float), np.array(document["hazards"], float)
            uses, reused = np.array(document["uses"], float), np.array(document["reused"], float)
            until, partial_ends = float(document["until"]), bool(document["partial_ends"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise KvtoolError(f"{name}: a field is missing or no table of numbers: {error}") from error
        if not _sound(tree, roots, edges, hazards) or not len(uses) == len(reused) == len(hazards):
            raise KvtoolError(f"{name}: its tree and its tables do not fit together")
        table = ReuseTable(tree, edges, index(hazards, edges), partial_ends, tuple(roots.tolist()))
        return cls(table, hazards, uses, reused, until)


def _sound(tree: NDArray[np.int64], roots: NDArray[np.int64], edges: Floats, hazards: Floats) -> bool:
    """Whether a walk down each tree always ends in a class that the table has."""
    if tree.ndim != 2 or tree.shape[1:] != (4,) or edges.ndim != 1 or hazards.ndim != 2:
        return False
    if roots.ndim != 1 or not 0 < len(roots) <= MOST_TREES or roots[0] != 0:
        return False
    if (np.diff(roots, append=len(tree)) <= 0).any():
        return False
    if hazards.shape[1] != len(edges) + 1 or not np.isfinite(hazards).all() or (hazards < 0).any():
        return False
    if not np.isfinite(edges).all() or (np.diff(edges, prepend=0.0) <= 0).any():
        return False
    at = np.arange(len(tree))
    leaf = tree[:, 0] < 0
    of = np.searchsorted(roots, at, side="right") - 1
    end = np.append(roots[1:], len(tree))[of]
    below = (tree[:, 2:] > at[:, None]) & (tree[:, 2:] < end[:, None])
    lowest = np.full(len(roots), len(hazards))
    np.minimum.at(lowest, of[leaf], tree[leaf, 1])
    own = tree[:, 1] - lowest[of]
    classes = (tree[:, 1] >= 0) & (tree[:, 1] < len(hazards)) & (own >= 0) & (own < 1 << CLASS_WIDTH)
    return bool(np.where(leaf, classes, below.all(1) & (tree[:, 0] < len(TRAITS))).all())


def _paths(table: ReuseTable) -> Iterator[tuple[int, int, dict[str, list[int]]]]:
    """(tree, class, inclusive bounds of the codes that lead to it) for every leaf."""
    waiting: list[tuple[int, int, dict[str, list[int]]]] = [
        (tree, root, {}) for tree, root in enumerate(table.roots)
    ]
    while waiting:
        tree, at, when = waiting.pop()
        trait, threshold, left, right = (int(value) for value in table.tree[at])
        if trait < 0:
            yield tree, threshold, when
            continue
        name = TRAITS[trait]
        low, high = when.get(name, [0, (1 << WIDTH[trait]) - 1])
        waiting.append((tree, left, {**when, name: [low, threshold]}))
        waiting.append((tree, right, {**when, name: [threshold + 1, high]}))


def fit(waits: Waits, until: float = np.inf, config: FitConfig = FitConfig()) -> ReuseModel | None:
    """Fit to what is known at time `until`; None when nothing was reused by then."""
    known = waits.until(until)
    if not known.ended.any():
        return None
    edges = EDGES[known.duration.max() > EDGES]
    weight = np.sqrt(known.blocks)
    weight /= weight.mean()
    events, exposure, base = _general_level(known, weight, edges, config)
    codes = np.stack(
        [(known.traits >> shift) & ((1 << width) - 1) for shift, width in zip(SHIFT, WIDTH, strict=True)], 1
    )
    trees, roots, ratios, uses, reused = [], [], [], [], []
    rows = classes = 0
    for view in config.views:
        seen = np.array(view)
        tree, ratio, leaf = _Grower(codes[:, seen], events, exposure, config).grow()
        inner = tree[:, 0] >= 0
        tree[inner, 0] = seen[tree[inner, 0]]
        tree[inner, 2:] += rows
        tree[~inner, 1] += classes
        roots.append(rows)
        rows, classes = rows + len(tree), classes + len(ratio)
        trees.append(tree)
        ratios.append(ratio)
        uses.append(np.bincount(leaf, known.blocks, len(ratio)))
        reused.append(np.bincount(leaf, known.blocks * known.ended, len(ratio)))
    hazards = np.concatenate(ratios) * base
    worth = index(hazards, edges)
    table = ReuseTable(np.concatenate(trees), edges, worth, waits.partial_ends, tuple(roots))
    return ReuseModel(table, hazards, np.concatenate(uses), np.concatenate(reused), min(until, waits.end))


def index(hazards: Floats, edges: Floats) -> Floats:
    """Worth by class and age, [classes, ages + 1]: max over spans of hits expected / seconds held."""
    last = 2 * edges[-1] if len(edges) else 1.0
    widths = np.diff(np.concatenate([[0.0], edges, [last]]))
    ends = 1 - np.exp(-hazards * widths)
    worth = np.zeros_like(hazards)
    for first in range(len(widths)):
        alive = np.ones(len(hazards))
        hits = np.zeros(len(hazards))
        held = np.zeros(len(hazards))
        for step in range(first, len(widths)):
            lost = alive * ends[:, step]
            held += widths[step] * (alive - lost / 2)
            hits += lost
            alive -= lost
            worth[:, first] = np.maximum(worth[:, first], hits / held)
    return worth


def _general_level(
    known: Waits, weight: Floats, edges: Floats, config: FitConfig
) -> tuple[Floats, Floats, Floats]:
    """(events, expected events) of each wait by age, [w, ages + 1], and the hazard of all by age.

    Expected: under hazards that depend on age and on the period of the log alone.
    """
    ages, periods = len(edges) + 1, config.periods
    bounds = np.linspace(0.0, known.end, periods + 1)[1:-1]
    pieces = known.pieces(edges, bounds)
    weights = weight[pieces.wait]
    ended = weights * pieces.ended
    at_risk = weights * pieces.seconds
    by_age, by_period = np.bincount(pieces.age, ended, ages), np.bincount(pieces.period, ended, periods)
    mean = ended.sum() / at_risk.sum()
    level = np.ones(periods)
    for _ in range(8):
        risk = np.bincount(pieces.age, at_risk * level[pieces.period], ages)
        base = (by_age + 3) / (risk + 3 / mean)
        expected = np.bincount(pieces.period, at_risk * base[pieces.age], periods)
        level = (by_period + 5) / (expected + 5)
    scale = ended.sum() / (at_risk * base[pieces.age]).sum()  # hazards alone foresee as many as there were
    base, level = base * scale, level / scale
    cells, size = pieces.wait * ages + pieces.age, len(weight) * ages
    shape = (len(weight), ages)
    events: Floats = np.bincount(cells, ended, size).astype(float)
    risks: Floats = np.bincount(cells, at_risk * base[pieces.age] * level[pieces.period], size).astype(float)
    return events.reshape(shape), risks.reshape(shape), base.astype(float)


class _Grower:
    """Grows the tree, best split first. codes: [w, traits]; events, expected: [w, ages]."""

    def __init__(self, codes: NDArray[np.int64], events: Floats, expected: Floats, config: FitConfig) -> None:
        self.codes, self.events, self.expected, self.config = codes, events, expected, config

    def grow(self) -> tuple[NDArray[np.int64], Floats, NDArray[np.int64]]:
        """(tree as `ReuseTable` has it, ratio to the general hazard [classes, ages], class of each wait)."""
        everyone = np.arange(len(self.codes))
        rows = [[-1, 0, 0, 0]]
        members, ratios = [everyone], [self._ratio(everyone, np.ones(self.events.shape[1]))]
        best = [self._best(everyone, ratios[0])]
        for _ in range(self.config.classes - 1):
            at = max(range(len(rows)), key=lambda i: best[i][0])
            gain, trait, threshold = best[at]
            if gain <= self.config.gain:
                break
            low = self.codes[members[at], trait] <= threshold
            rows[at] = [trait, threshold, len(rows), len(rows) + 1]
            best[at] = (-1.0, 0, 0)
            for part in (members[at][low], members[at][~low]):
                rows.append([-1, 0, 0, 0])
                members.append(part)
                ratios.append(self._ratio(part, ratios[at]))
                best.append(self._best(part, ratios[-1]))
        leaves = [i for i, row in enumerate(rows) if row[0] < 0]
        classes = np.zeros(len(self.codes), np.int64)
        for number, leaf in enumerate(leaves):
            rows[leaf][1] = number
            classes[members[leaf]] = number
        return np.array(rows, np.int64), np.stack([ratios[leaf] for leaf in leaves]), classes

    def _ratio(self, members: NDArray[np.int64], above: Floats) -> Floats:
        return self._shrunk(self.events[members].sum(0), self.expected[members].sum(0), above)

    def _shrunk(self, events: Floats, expected: Floats, above: Floats) -> Floats:
        """Ratios by age that lean on the parent's shape, `above`, at these members' own level."""
        level, shrink = self.config.level, self.config.shrink
        own = (events.sum(-1, keepdims=True) + level) / ((expected * above).sum(-1, keepdims=True) + level)
        ratio: Floats = (events + shrink * own * above) / (expected + shrink)
        return ratio

    def _score(self, events: Floats, expected: Floats, above: Floats) -> Floats:
        ratio = self._shrunk(events, expected, above)
        score: Floats = (events * np.log(ratio) - ratio * expected).sum(-1)
        return score

    def _best(self, members: NDArray[np.int64], above: Floats) -> tuple[float, int, int]:
        """(gain, trait, threshold) of the best split of `members`."""
        events, expected = _histograms(self.codes, self.events, self.expected, members)
        whole = self._score(events[0].sum(0), expected[0].sum(0), above)
        left_events, left_expected = events.cumsum(1)[:, :-1], expected.cumsum(1)[:, :-1]
        right_events, right_expected = (
            events.sum(1, keepdims=True) - left_events,
            expected.sum(1, keepdims=True) - left_expected,
        )
        gains = (
            self._score(left_events, left_expected, above)
            + self._score(right_events, right_expected, above)
            - whole
        )
        enough = np.minimum(left_events.sum(2), right_events.sum(2)) >= self.config.events
        gains = np.where(enough, gains, 0.0)
        trait, threshold = np.unravel_index(gains.argmax(), gains.shape)
        return float(gains[trait, threshold]), int(trait), int(threshold)


@njit(cache=True)
def _histograms(codes, events, expected, members):  # type: ignore[no-untyped-def]
    """Sums by trait and code, float64 [traits, CODES, ages] each."""
    traits, ages = codes.shape[1], events.shape[1]
    sums = np.zeros((2, traits, CODES, ages))
    for row in members:
        for trait in range(traits):
            code = codes[row, trait]
            for age in range(ages):
                sums[0, trait, code, age] += events[row, age]
                sums[1, trait, code, age] += expected[row, age]
    return sums[0], sums[1]
