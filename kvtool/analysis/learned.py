"""The reuse model that a log supports as a whole: what analyze saves and prewarm puts beside shards."""

import numpy as np

from kvtool.analysis.reuse_model import ReuseModel, fit
from kvtool.analysis.runs import Runs
from kvtool.analysis.waits import waits_of
from kvtool.analysis.workload import Workload

FEWEST_REQUESTS = 200
"""Below this `cost` ranks as well; it is also where replays fit their first model."""

MOST_BLOCKS = 1_000_000
"""Block uses that are learned from, the latest ones: a few seconds of fitting however long the log."""


def learn(workload: Runs | Workload) -> ReuseModel | None:
    """Fit to the latest part of a log. None where it is too small, lacks times, or nothing is reused.

    Hazards are per second: a log whose order is known but not its times says nothing about them.
    """
    if (workload.arrival < 0).any() or workload.requests < FEWEST_REQUESTS:
        return None
    total = int(workload.offsets[-1])
    first = int(np.searchsorted(workload.offsets, total - MOST_BLOCKS)) if total > MOST_BLOCKS else 0
    latest = workload.select(first, workload.requests)
    if latest.requests < FEWEST_REQUESTS or latest.clock[-1] <= 0.0:
        return None
    return fit(waits_of(latest.unfolded(used=True) if isinstance(latest, Runs) else latest))
