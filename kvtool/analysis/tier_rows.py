"""What each tier serves, what is written to it, how long its loads take and the time that it saves."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvtool.analysis.hit_rates import capped, ratio
from kvtool.analysis.tiered import Tiered
from kvtool.analysis.workload import Workload


def tier_rows(
    workload: Workload,
    tiered: Tiered,
    tiers: Sequence[tuple[str, int]],
    measured: slice = slice(None),
    prefill_rate: float | None = None,
    speeds: Mapping[str, float] | None = None,
    latencies: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """One row per (name, blocks), fastest first, over the `measured` requests.

    A request's loads from a tier are one transfer: the tier's latency in seconds, then its blocks at its
    speed in blocks a second; a tier without either loads in no time. prefill_rate: tokens a second, gives
    seconds_saved: the prefill of what the tier served, less its loads.
    """
    prompts = workload.prompt_tokens[measured]
    served, written = tiered.served[measured], tiered.written[measured]
    saved = np.array(
        [capped(blocks, prompts, workload.block_size).sum() for blocks in np.cumsum(served, axis=1).T]
    )
    rows: list[dict[str, Any]] = []
    for tier, (name, blocks) in enumerate(tiers):
        tokens = int(saved[tier] - (saved[tier - 1] if tier else 0))
        row: dict[str, Any] = {
            "tier": name,
            "capacity_blocks": blocks,
            "tokens": round(ratio(tokens, prompts.sum()), 6),
            "hit_blocks": int(served[:, tier].sum()),
            "written_blocks": int(written[:, tier].sum()),
        }
        speed, latency = (speeds or {}).get(name), (latencies or {}).get(name, 0.0)
        loads = served[:, tier][served[:, tier] > 0]
        seconds = loads / speed + latency if speed else np.full(len(loads), latency)
        if speed or latency:
            row["load_seconds"] = round(float(seconds.sum()), 3)
            row["load_p99_seconds"] = round(float(np.quantile(seconds, 0.99)), 6) if len(loads) else 0.0
        if prefill_rate is not None:
            row["seconds_saved"] = round(tokens / prefill_rate - float(seconds.sum()), 3)
        rows.append(row)
    return rows
