"""simulate: what a log's hit rate would be under other capacities, policies, replicas and tiers."""

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvtool.analysis.belady import belady
from kvtool.analysis.curve import LruCurve
from kvtool.analysis.fitted_replay import FittedReplay
from kvtool.analysis.flops import TYPICAL, Prefill
from kvtool.analysis.hit_rates import capped, matched_blocks
from kvtool.analysis.memory import ModelShape, describe_memory, parse_capacity
from kvtool.analysis.rates import Rates, rates_of
from kvtool.analysis.replay import replay
from kvtool.analysis.resident import Resident
from kvtool.analysis.simulation_advice import Known, advise
from kvtool.analysis.tier_rows import tier_rows
from kvtool.analysis.workload import Workload
from kvtool.cache.policies import POLICIES
from kvtool.errors import KvtoolError

if TYPE_CHECKING:
    from kvtool.analysis.timed import TimedConfig

BELADY = "belady"
"""The offline optimum; not a policy that could run, hence not in the registry."""

FITTED = "fitted"
"""The policy that needs a model of the log; without one, in replicas and with a ttl, it ranks as `cost`."""

CAPACITIES = ("1%", "3%", "5%", "10%", "30%", "100%")
DEFAULT_POLICIES = ("lru", "cost", BELADY)


@dataclass(frozen=True)
class SimulateConfig:
    """capacities: as `parse_capacity` reads them, all replicas together. train_fraction: requests before
    it only warm the caches. ttl: seconds. tiers: (name, capacity), fastest first; tier_speeds: (name, bytes a
    second). timed: requests overlap (one replica, no ttl); None: one after the other. prefetch: from lower
    tiers, as learned from the training part."""

    capacities: tuple[str, ...] = CAPACITIES
    policies: tuple[str, ...] = DEFAULT_POLICIES
    replicas: int = 1
    routing: str = "prefix"
    hash_blocks: int = 2
    train_fraction: float = 0.0
    ttl: float | None = None
    tiers: tuple[tuple[str, str], ...] = ()
    tier_speeds: tuple[tuple[str, int], ...] = ()
    prefetch: bool = False
    seed: int = 0
    timed: "TimedConfig | None" = None


class Simulation:
    """One workload under many settings."""

    def __init__(
        self,
        workload: Workload,
        config: SimulateConfig,
        shape: ModelShape | None = None,
        resident: Resident | None = None,
        known: Known | None = None,
    ) -> None:
        """resident: blocks with which every setting is simulated a second time, as a prewarmed start. known:
        what advice may point to."""
        if resident is not None and config.replicas > 1:
            raise KvtoolError("a prewarmed start is simulated on one replica, without --replicas")
        if config.timed is not None and (config.replicas > 1 or config.ttl is not None):
            raise KvtoolError("overlapping requests are simulated on one replica, without --ttl")
        if config.prefetch and (len(config.tiers) < 2 or config.train_fraction <= 0):
            raise KvtoolError(
                "prefetch needs a tier to fetch from and a part of the log to learn from",
                "add --tiers device=5%,host=30% --train-fraction 50%",
            )
        self.workload = workload
        self.config = config
        self.shape = shape
        self.resident = resident
        self.known = known or Known()
        self.prefill: Prefill = shape.prefill() if shape else TYPICAL
        self.measured = slice(int(config.train_fraction * workload.requests), None)
        self.curve = LruCurve(workload, self.prefill)
        self.unbounded = rates_of(workload, matched_blocks(workload), self.prefill, self.measured)

    @cached_property
    def fitted(self) -> FittedReplay:
        """Replays under models of the reuse, the first one fitted to what is not measured."""
        return FittedReplay(self.workload, int(self.measured.start))

    def run(self) -> dict[str, Any]:
        """The JSON document of the contract."""
        rows = [
            self.row(policy, capacity)
            for capacity in sorted({self._blocks(text) for text in self.config.capacities})
            for policy in self._policies()
        ]
        document = {
            "schema": "kvtool.simulation/1",
            "requests": {
                "all": self.workload.requests,
                "measured": self.workload.requests - int(self.measured.start),
            },
            "block_size": self.workload.block_size,
            "distinct_blocks": self.workload.distinct_blocks,
            "unbounded": rounded(self.unbounded),
            "rows": rows,
            "tiers": self.tier_rows(),
            "advice": advise(self, rows, self.known) if rows else [],
        }
        if self.config.prefetch:
            document["prefetch"] = self.prefetch()
        if self.resident is not None:
            document["resident"] = {"blocks": len(self.resident.nodes), "in_log": self.resident.known}
        if self.shape is not None:
            document["memory"] = describe_memory(self.workload, self.shape)
        return document

    def row(self, policy: str, capacity: int, routing: str | None = None) -> dict[str, Any]:
        """One setting. Belady is one cache of the whole capacity, whatever the replicas."""
        routing = routing or self.config.routing
        split = self.config.replicas > 1 and policy != BELADY
        imbalance = 1.0
        extra: dict[str, Any] = {}
        if policy == BELADY:
            matched = belady(self.workload, capacity)
        elif split:
            from kvtool.analysis.routing import RoutingConfig, replay_replicas  # compiled at first import

            routed = replay_replicas(
                self.workload,
                POLICIES.load(policy),
                capacity,
                RoutingConfig(
                    self.config.replicas,
                    routing,
                    self.config.hash_blocks,
                    seed=self.config.seed,
                    ttl=self.config.ttl,
                ),
            )
            matched = routed.matched
            tokens = self.workload.prompt_tokens
            computed = tokens - capped(matched, tokens, self.workload.block_size)
            computed[: self.measured.start] = 0
            imbalance = routed.load_over_mean(computed, self.config.replicas)
        else:
            matched, extra = self._one_cache(policy, capacity, None)
            if self.resident is not None:
                extra["prewarmed"] = self._prewarmed(policy, capacity, self.resident)
        return {
            "policy": policy,
            "capacity_blocks": capacity,
            "capacity_share": round(capacity / max(self.workload.distinct_blocks, 1), 6),
            "replicas": self.config.replicas if split else 1,
            "routing": routing if split else None,
            **rounded(rates_of(self.workload, matched, self.prefill, self.measured)),
            "max_load_over_mean": round(imbalance, 6),
            **extra,
        }

    def single_cache(self, policy: str, capacity: int) -> dict[str, Any]:
        """The row of one cache with the capacity of all replicas."""
        return Simulation(self.workload, replace(self.config, replicas=1), self.shape).row(policy, capacity)

    def _one_cache(
        self, policy: str, capacity: int, resident: Resident | None
    ) -> tuple[NDArray[np.int64], dict[str, Any]]:
        """Matched blocks of each request, int64 [r], and what else there is to say."""
        if self.config.timed is not None:
            from kvtool.analysis.timed import replay_timed

            timed = replay_timed(self.workload, POLICIES.load(policy), capacity, self.config.timed, resident)
            return timed.matched, {"bypassed_requests": timed.bypassed, "most_held_blocks": timed.most_held}
        if policy == FITTED and self.config.ttl is None:
            return self.fitted.matched(capacity, resident), {}
        return replay(self.workload, POLICIES.load(policy), capacity, self.config.ttl, resident), {}

    def _prewarmed(self, policy: str, capacity: int, resident: Resident) -> dict[str, Any]:
        matched, _ = self._one_cache(policy, capacity, resident)
        rates = rates_of(self.workload, matched, self.prefill, self.measured)
        return {
            "blocks": min(len(resident.nodes), capacity),
            "tokens": round(rates.tokens, 6),
            "hit_blocks": rates.hit_blocks,
            "rebuild_flops_saved": round(rates.rebuild_flops_saved, 6),
        }

    def tier_rows(self) -> list[dict[str, Any]]:
        """What each of the tiers does under LRU."""
        rate = None if self.config.timed is None else self.config.timed.prefill_rate
        speeds = {}
        if self.config.tier_speeds:
            if self.shape is None:
                raise KvtoolError("--tier-speed: bytes need --model", "name a model folder, or embedded")
            block = self.shape.bytes_per_token() * self.workload.block_size
            speeds = {name: speed / block for name, speed in self.config.tier_speeds}
        tiers = [(name, self._blocks(text)) for name, text in self.config.tiers]
        return tier_rows(self.workload, self.curve, tiers, rate, speeds)

    def prefetch(self) -> dict[str, Any]:
        """What prefetching to the first tier would do to the requests after the training part."""
        from kvtool.analysis.prefetch import simulate_prefetch
        from kvtool.analysis.transitions import ANY, learn_transitions

        train = int(self.measured.start)
        model = learn_transitions(self.workload, train)
        first, *others = (self._blocks(text) for _, text in self.config.tiers)
        return {
            "states": len(model.follows.keys() - {ANY}),
            **simulate_prefetch(self.workload, model, train, first, sum(others)).to_json(),
        }

    def _policies(self) -> list[str]:
        if "all" in self.config.policies:
            return [*POLICIES.names(), BELADY]
        return list(dict.fromkeys(self.config.policies))

    def _blocks(self, capacity: str) -> int:
        return parse_capacity(capacity, self.workload, self.shape)


def rounded(rates: Rates) -> dict[str, Any]:
    """Rates as JSON has them, six digits."""
    return {
        name: value if isinstance(value, int) else round(value, 6) for name, value in asdict(rates).items()
    }
