"""Which prompt follows: first-order transitions between the ends of a session's requests.

A request's state is the deepest prefix of its prompt that several sessions of the training part use. What
follows is the session's own prompt grown longer, another state's chain, or nothing. Each comes with how long
it takes.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvtool.analysis.prefixes import usage
from kvtool.analysis.workload import Workload

GROWS, ENDS = -2, -3
"""What follows beside states: the session's own prompt goes on, or the session ends. -1 is a prompt that
shares nothing."""

ANY = -4
"""Stands for every state: where one has too little evidence of its own."""


@dataclass(frozen=True)
class TransitionConfig:
    """least: probability from which a prediction is acted on. evidence: transitions a state needs for
    predictions of its own. early: share of the waits that are shorter than the one counted on, and of those
    that are longer than is waited for; lead: the part of that wait after which a fetch begins, for it takes
    time itself, and the last of those waits gets as much more."""

    least: float = 0.5
    evidence: int = 10
    early: float = 0.2
    lead: float = 0.8


@dataclass(frozen=True)
class Transitions:
    """follows: by state, what came next and how often; waits: by (state, what), the seconds until then."""

    states: NDArray[np.bool_]
    config: TransitionConfig
    follows: dict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    waits: dict[tuple[int, int], list[float]] = field(default_factory=lambda: defaultdict(list))

    def state_of(self, path: NDArray[np.int32]) -> int:
        """The state of a request with these nodes, -1 if it shares nothing."""
        shared = int(self.states[path].sum())
        return int(path[shared - 1]) if shared else -1

    def predict(self, state: int, grows: bool = True) -> tuple[int, float, float] | None:
        """(what follows, its probability, seconds after which to fetch it); None if nothing is likely.

        Own evidence decides, or that of all states together. grows: whether there is a prompt to go on.
        """
        found = self.expected(state, grows)
        return None if found is None else found[:3]

    def expected(self, state: int, grows: bool = True) -> tuple[int, float, float, float] | None:
        """`predict`, and the seconds after which it is not to be expected any more."""
        seen = self.follows.get(state, Counter())
        if seen.total() < self.config.evidence:
            state = ANY
            seen = self.follows.get(ANY, Counter())
        likely = [(count, what) for what, count in seen.items() if what >= 0 or (what == GROWS and grows)]
        if not likely:
            return None
        count, what = max(likely)
        share = count / seen.total()
        if share < self.config.least:
            return None
        early, late = np.quantile(self.waits[state, what], [self.config.early, 1 - self.config.early])
        return what, share, self.config.lead * float(early), float(late) / self.config.lead


def learn_transitions(
    workload: Workload, train: int, config: TransitionConfig = TransitionConfig()
) -> Transitions:
    """From the first `train` requests alone; a session without another request among them counts as ended."""
    part = workload.select(0, train)
    model = Transitions(usage(part).sessions >= 2, config)
    last: dict[int, int] = {}
    for request, session in enumerate(part.session.tolist()):
        if session < 0:
            continue
        before = last.get(session)
        last[session] = request
        if before is None:
            continue
        state = model.state_of(path_of(workload, before))
        what = GROWS if _goes_on(workload, before, request) else model.state_of(path_of(workload, request))
        wait = float(workload.clock[request] - workload.clock[before])
        for known in (state, ANY):
            model.follows[known][what] += 1
            model.waits[known, what].append(wait)
    for request in last.values():
        for known in (model.state_of(path_of(workload, request)), ANY):
            model.follows[known][ENDS] += 1
    return model


def path_of(workload: Workload, request: int) -> NDArray[np.int32]:
    """A request's nodes, front to back."""
    return workload.nodes[workload.offsets[request] : workload.offsets[request + 1]]


def _goes_on(workload: Workload, before: int, after: int) -> bool:
    """Whether the later prompt begins with the earlier one's full blocks."""
    own = path_of(workload, before)[: int(workload.lengths[before] - workload.partial[before])]
    next_path = path_of(workload, after)
    return 0 < len(own) <= len(next_path) and bool(next_path[len(own) - 1] == own[-1])
