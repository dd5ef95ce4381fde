"""Replay under the fitted policy, whose model goes on learning: each model knows only what came before.

Until the first fit blocks rank as under `lru`. The model is fitted again whenever the log has grown by a
sixteenth, so that it follows what changes at a cost that stays in proportion.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kvtool.analysis.replay import Schedule, replay
from kvtool.analysis.resident import Resident
from kvtool.analysis.reuse_model import ReuseModel, fit
from kvtool.analysis.waits import STUMP, waits_of
from kvtool.analysis.workload import Workload
from kvtool.cache.policies import fitted

GROWTH = 16
FIRST = 200
"""Requests before the first fit, or the training part if that is shorter."""


class FittedReplay:
    """Models over a workload, shared by replays at several capacities.

    train: requests after which, unless it is to `learn` on, the last model is fitted. Until then it ranks by
    what it has learned so far, as any policy starts with the log and not where counting starts.
    """

    def __init__(self, workload: Workload, train: int = 0, learn: bool = True) -> None:
        self.workload = workload
        self.partial_ends = bool(workload.partial.any())
        waits = waits_of(workload)
        times = workload.clock
        self.models: list[tuple[int, ReuseModel | None]] = [
            (at, fit(waits, float(times[at]))) for at in _moments(train, workload.requests, learn)
        ]

    def matched(self, capacity: int, resident: Resident | None = None) -> NDArray[np.int64]:
        """Matched blocks of each request, int64 [r], with a cache of `capacity` blocks.

        resident: blocks that are there at the start.
        """
        return replay(self.workload, self.schedule, capacity, resident=resident)

    @property
    def schedule(self) -> Schedule:
        """Which model ranks from which request on, for any kind of replay."""
        size = self.workload.block_size
        tables = [(0, STUMP), *((at, model.table if model else None) for at, model in self.models)]
        return [
            (at, fitted.by_table(table, size, self.partial_ends)) for at, table in tables if table is not None
        ]


def _moments(train: int, requests: int, learn: bool) -> Iterator[int]:
    at = min(FIRST, train or FIRST)
    last = requests if learn else min(train, requests - 1)
    while at < last:
        yield at
        at += max(at // GROWTH, 1)
    if not learn:
        yield last
