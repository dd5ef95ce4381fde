"""Load or compute: what a token of a plan costs to bring up from a tier, and to compute instead."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvtool.analysis.plan import TIERS, Plan


@dataclass(frozen=True, slots=True)
class Speeds:
    """A machine's. compute: FLOPs a second of a prefill; tiers: bytes a second from host memory and from
    disk; decode: seconds to turn a stored block back into keys and values."""

    compute: float
    tiers: Mapping[str, float]
    decode: float


@dataclass(frozen=True, slots=True)
class Way:
    """One way to have a token of the plan, in seconds a token; what is loaded from disk is decoded and
    passes through host memory. compute: the same token computed, at the depths that are used most."""

    tier: str
    bytes_per_token: float
    bytes_per_second: float
    load: float
    compute: float

    @property
    def pays(self) -> bool:
        """Whether loading is faster."""
        return self.load < self.compute


def ways(plan: Plan, speeds: Speeds, memory_bytes: int) -> list[Way]:
    """Host and disk, for a plan that is not empty. memory_bytes: of a block that is not coded."""
    size = plan.block_size
    uses = np.maximum(plan.expected, 1e-9)
    compute = float(np.average(plan.flops, weights=uses)) / size / speeds.compute
    stored = float(np.average(plan.bytes, weights=uses)) / size
    memory = memory_bytes / size
    host = memory / speeds.tiers["host"]
    disk = stored / speeds.tiers["disk"] + speeds.decode / size + host
    return [
        Way("host", memory, speeds.tiers["host"], host, compute),
        Way("disk", stored, speeds.tiers["disk"], disk, compute),
    ]


def seconds_saved(plan: Plan, speeds: Speeds, found: list[Way]) -> float:
    """Prefill that the plan is expected to save over as much traffic as the log, less the loads."""
    load = {"device": 0.0, **{way.tier: way.load for way in found}}
    by_tier = np.bincount(plan.tier, plan.expected, len(TIERS)) * plan.block_size
    loads = sum(float(tokens) * load[name] for name, tokens in zip(TIERS, by_tier, strict=True))
    return plan.forecast.flops_saved / speeds.compute - loads
