"""Replay under the fitted policy, whose model goes on learning: each model knows only what came before.

Until the first fit blocks rank as under `lru`. The model is fitted again whenever the log has grown by a
sixteenth, so that it follows what changes at a cost that stays in proportion.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kvtool.analysis.replay import pool_state, replay_part
from kvtool.analysis.resident import Resident
from kvtool.analysis.reuse_model import ReuseModel, fit
from kvtool.analysis.waits import STUMP, waits_of
from kvtool.analysis.workload import Workload
from kvtool.cache import aging
from kvtool.cache.policies import fitted

GROWTH = 16
FIRST = 200
"""Requests before the first fit when no training part is named."""


class FittedReplay:
    """Models over a workload, shared by replays at several capacities.

    train: requests that the first model is fitted to (0: FIRST). learn: whether it is fitted again later.
    """

    def __init__(self, workload: Workload, train: int = 0, learn: bool = True) -> None:
        self.workload = workload
        self.partial_ends = bool(workload.partial.any())
        waits = waits_of(workload)
        times = workload.clock
        self.models: list[tuple[int, ReuseModel | None]] = [
            (at, fit(waits, float(times[at]))) for at in _moments(train or FIRST, workload.requests, learn)
        ]

    def matched(self, capacity: int, resident: Resident | None = None) -> NDArray[np.int64]:
        """Matched blocks of each request, int64 [r], with a cache of `capacity` blocks.

        resident: blocks that are there at the start.
        """
        workload, clock = self.workload, self.workload.clock
        matched = np.empty(workload.requests, np.int64)
        policy = fitted.by_table(STUMP, workload.block_size, self.partial_ends)
        state = pool_state(workload, policy, capacity, resident)
        done = 0
        for at, model in [*self.models, (workload.requests, None)]:
            replay_part(state, policy, workload, done, at, matched)
            done = at
            if model is not None:
                policy = fitted.by_table(model.table, workload.block_size, self.partial_ends)
                state = state._replace(parameters=policy.parameter_array())
                aging.reclassify(state, float(clock[at]))
        return matched


def _moments(first: int, requests: int, learn: bool) -> Iterator[int]:
    at = first
    while at < requests:
        yield at
        if not learn:
            return
        at += max(at // GROWTH, 1)
