"""Prefetch from learned transitions: what would be in the first tier when it is asked for, and at what price.

Two tiers under LRU, the second one everything below the first: a block that leaves the first goes to the
second and comes back when it is used or prefetched. A demand load is a block that a request finds below the
first tier and has to wait for.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvtool.analysis.replay import pool_state, serve_one
from kvtool.analysis.transitions import GROWS, Transitions, path_of
from kvtool.analysis.workload import Workload
from kvtool.cache.core import STATE, compiled, match
from kvtool.cache.policies import POLICIES
from kvtool.cache.policy import KEY_TYPE

PREFETCHED, USED, DEMAND, HITS = 0, 1, 2, 3


@dataclass(frozen=True)
class Prefetched:
    """Blocks, over the requests after the training part.

    loads: brought up before they were asked for; used: of these, found by a request; demand, hits: loaded
    while a request waited, and found in the first tier. plain_demand, plain_hits: the same without prefetch.
    """

    predictions: int
    loads: int
    used: int
    demand: int
    hits: int
    plain_demand: int
    plain_hits: int

    def to_json(self) -> dict[str, Any]:
        """recall: of all loads that were needed, those done ahead; waste: of those done ahead, the unused."""
        needed = self.used + self.demand
        return {
            "predictions": self.predictions,
            "prefetched_blocks": self.loads,
            "used_blocks": self.used,
            "recall": round(self.used / needed, 6) if needed else 0.0,
            "waste": round(1 - self.used / self.loads, 6) if self.loads else 0.0,
            "demand_loads": {"without": self.plain_demand, "with": self.demand},
            "demand_loads_avoided": (
                round(1 - self.demand / self.plain_demand, 6) if self.plain_demand else 0.0
            ),
            "first_tier_hit_blocks": {"without": self.plain_hits, "with": self.hits},
        }


def simulate_prefetch(
    workload: Workload, model: Transitions, train: int, first: int, below: int
) -> Prefetched:
    """Tiers of `first` and `below` blocks; predictions are made for requests from `train` on.

    A prefetch begins when the model says so, unless the session's next request is there already.
    """
    times, leaves = _planned(workload, model, train)
    arrivals = (workload.clock, workload.leaf, np.arange(workload.requests) < train)
    plain = _counts(workload, *arrivals, np.zeros(workload.requests, np.bool_), first, below)
    at = np.concatenate([workload.clock, times])
    order = np.argsort(at, kind="stable")  # of one instant: arrivals first
    counts = _counts(
        workload,
        at[order],
        np.concatenate([workload.leaf, leaves])[order],
        np.concatenate([arrivals[2], np.zeros(len(times), np.bool_)])[order],
        np.concatenate([np.zeros(workload.requests, np.bool_), np.ones(len(times), np.bool_)])[order],
        first,
        below,
    )
    return Prefetched(
        len(times),
        int(counts[PREFETCHED]),
        int(counts[USED]),
        int(counts[DEMAND]),
        int(counts[HITS]),
        int(plain[DEMAND]),
        int(plain[HITS]),
    )


def _planned(
    workload: Workload, model: Transitions, train: int
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """(time, last node of the chain to fetch) of every prediction that is acted on, in order of requests."""
    arrives = np.full(workload.requests, np.inf)
    latest: dict[int, int] = {}
    for request, session in enumerate(workload.session.tolist()):
        if session in latest:
            arrives[latest[session]] = workload.clock[request]
        if session >= 0:
            latest[session] = request
    times: list[float] = []
    leaves: list[int] = []
    for request in range(train, workload.requests):
        if workload.session[request] < 0:
            continue
        leaf = int(workload.leaf[request])
        predicted = model.predict(model.state_of(path_of(workload, request)), grows=leaf >= 0)
        if predicted is None:
            continue
        what, _, wait = predicted
        begin = float(workload.clock[request]) + wait
        if arrives[request] > begin:
            times.append(begin)
            leaves.append(leaf if what == GROWS else what)
    return np.array(times), np.array(leaves, np.int32)


def _counts(
    workload: Workload,
    at: NDArray[np.float64],
    leaves: NDArray[np.int32],
    training: NDArray[np.bool_],
    ahead: NDArray[np.bool_],
    first: int,
    below: int,
) -> NDArray[np.int64]:
    lru = POLICIES.load("lru")
    counts = np.zeros(4, np.int64)
    _replay(
        pool_state(workload, lru, first),
        pool_state(workload, lru, first + below),
        lru.key,
        at,
        leaves,
        training,
        ahead,
        np.empty(int(workload.lengths.max(initial=0)), np.int32),
        np.zeros(workload.distinct_blocks, np.bool_),
        counts,
    )
    return counts


@compiled(
    types.void(
        STATE,
        STATE,
        KEY_TYPE,
        types.float64[::1],
        types.int32[::1],
        types.boolean[::1],
        types.boolean[::1],
        types.int32[::1],
        types.boolean[::1],
        types.int64[::1],
    )
)
def _replay(
    upper: Any,
    both: Any,
    key: Any,
    at: Any,
    leaves: Any,
    training: Any,
    ahead: Any,
    path: Any,
    waiting: Any,
    counts: Any,
) -> None:
    """upper: the first tier; both: all that is in either, for LRU keeps the one inside the other.
    waiting: blocks that were prefetched and not yet used."""
    for step in range(at.size):
        node = leaves[step]
        if node < 0:
            continue
        length = upper.depth[node] + 1
        for i in range(length - 1, -1, -1):
            path[i] = node
            node = upper.parent[node]
        blocks = path[:length]
        if ahead[step]:
            found = min(match(both, blocks), upper.owner.size)
            blocks = path[:found]
            here = match(upper, blocks)
            for i in range(here, found):
                waiting[blocks[i]] = True
            counts[PREFETCHED] += found - here
        found = serve_one(both, key, False, blocks, at[step], np.uint64(0), -1, np.inf, 1)
        here = serve_one(upper, key, False, blocks, at[step], np.uint64(0), -1, np.inf, 1)
        if ahead[step]:
            continue
        for i in range(length):
            counts[USED] += waiting[blocks[i]] and i < here
            waiting[blocks[i]] = False
        if not training[step]:
            counts[DEMAND] += found - here
            counts[HITS] += here
