"""Tiers under LRU: what each serves, what is written to it, and the time that this saves.

A block that leaves a tier goes to the next and comes back to the first when used: then the tiers are
sections of one recency stack, and the LRU curve has all of their figures.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kvtool.analysis.curve import LruCurve
from kvtool.analysis.workload import Workload


def tier_rows(
    workload: Workload,
    curve: LruCurve,
    tiers: Sequence[tuple[str, int]],
    prefill_rate: float | None = None,
    speeds: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """One row per (name, blocks), fastest first, over the whole log.

    written_blocks: computed or loaded into the first tier; pushed out of the tier above into another.
    prefill_rate: tokens a second, gives seconds_saved: the prefill of what the tier served, less its loads at
    `speeds`, blocks a second by tier; a tier without one loads in no time.
    """
    accesses, prompts = int(workload.lengths.sum()), int(workload.prompt_tokens.sum())
    rows: list[dict[str, Any]] = []
    total, served, found = 0, 0.0, 0
    for name, blocks in tiers:
        above, total = total, total + blocks
        here = curve.at(total)
        misses_above = accesses - (found if above else here.hit_blocks)
        row: dict[str, Any] = {
            "tier": name,
            "capacity_blocks": blocks,
            "tokens": round(here.tokens - served, 6),
            "written_blocks": misses_above - min(above, workload.distinct_blocks),
        }
        if prefill_rate is not None:
            seconds = (here.tokens - served) * prompts / prefill_rate
            if speeds and name in speeds:
                seconds -= (here.hit_blocks - found) / speeds[name]
            row["seconds_saved"] = round(seconds, 3)
        rows.append(row)
        served, found = here.tokens, here.hit_blocks
    return rows
