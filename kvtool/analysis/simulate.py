"""simulate: what a log's hit rate would be under other capacities, policies, replicas and tiers."""

from collections.abc import Callable
from copy import copy
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
from kvtool.analysis.replay import Schedule, replay, session_bits
from kvtool.analysis.resident import Resident
from kvtool.analysis.reuse_model import ReuseModel
from kvtool.analysis.simulation_advice import Known, advise
from kvtool.analysis.tier_rows import tier_rows
from kvtool.analysis.workload import Workload
from kvtool.cache.composite import DEFAULTS, WEIGHTS
from kvtool.cache.policies import POLICIES, fitted
from kvtool.cache.policy import Policy
from kvtool.errors import KvtoolError

if TYPE_CHECKING:
    from kvtool.analysis.timed import TimedConfig

BELADY = "belady"
"""The offline optimum; not a policy that could run, hence not in the registry."""

FITTED = "fitted"
"""The policy that learns from the log as it goes."""

COST = "cost"
"""The policy whose weights can be set."""

PREWARMED = ("tokens", "hit_blocks", "written_blocks")
"""What a tier's row says of the prewarmed start."""

CAPACITIES = ("1%", "3%", "5%", "10%", "30%", "100%")
DEFAULT_POLICIES = ("lru", "cost", BELADY)


@dataclass(frozen=True)
class SimulateConfig:
    """capacities: as `parse_capacity` reads them, all replicas together. train_fraction: requests before
    it only warm the caches. ttl: seconds. tiers: (name, capacity), fastest first; tier_speeds: (name, bytes a
    second), tier_latencies: (name, seconds); tiers_keep: see `replay_tiers`. timed: requests overlap (one
    replica); None: one after the other. prefetch: from lower tiers, as learned from the training part. admit:
    see `replay`; with tiers, what the lower ones take. weights: of `cost`, by name; priorities: see
    `session_bits`."""

    capacities: tuple[str, ...] = CAPACITIES
    policies: tuple[str, ...] = DEFAULT_POLICIES
    replicas: int = 1
    routing: str = "prefix"
    hash_blocks: int = 2
    train_fraction: float = 0.0
    ttl: float | None = None
    tiers: tuple[tuple[str, str], ...] = ()
    tier_speeds: tuple[tuple[str, int], ...] = ()
    tier_latencies: tuple[tuple[str, float], ...] = ()
    tiers_keep: bool = False
    prefetch: bool = False
    seed: int = 0
    timed: "TimedConfig | None" = None
    admit: int = 1
    weights: tuple[tuple[str, float], ...] = ()
    priorities: tuple[tuple[str, int], ...] = ()


class Simulation:
    """One workload under many settings."""

    def __init__(
        self,
        workload: Workload,
        config: SimulateConfig,
        shape: ModelShape | None = None,
        resident: Resident | None = None,
        known: Known | None = None,
        reuse: ReuseModel | None = None,
    ) -> None:
        """resident: blocks with which every setting is simulated a second time, as a prewarmed start. known:
        what advice may point to. reuse: what `fitted` ranks by, as a server does; None: it learns."""
        if config.timed is not None and config.replicas > 1:
            raise KvtoolError(
                "overlapping requests are simulated on one replica",
                "leave out --replicas, or --prefill-rate, --decode-rate and --cache-outputs",
            )
        named = {name for name, _ in config.tiers}
        for option, pairs in (
            ("--tier-speed", config.tier_speeds),
            ("--tier-latency", config.tier_latencies),
        ):
            for name, _ in pairs:
                if name not in named:
                    raise KvtoolError(f"{option} {name}: no such tier", "name it in --tiers, as host=20%")
        if config.tiers and config.replicas > 1:
            raise KvtoolError("tiers are simulated on one replica", "leave out --replicas or --tiers")
        if (
            config.tiers
            and config.timed is not None
            and (config.timed.outputs or config.timed.decode_rate < np.inf)
        ):
            raise KvtoolError(
                "tiers are simulated one request after the other",
                "leave out --decode-rate and --cache-outputs, or --tiers",
            )
        if config.prefetch and (config.ttl is not None or config.admit > 1):
            raise KvtoolError(
                "prefetch is simulated with blocks that all stay",
                "leave out --ttl and --admit, or --prefetch",
            )
        for name, _ in config.weights:
            if name not in WEIGHTS:
                raise KvtoolError(f"--cost-weight {name}: not one of {', '.join(WEIGHTS)}")
        if dict(config.weights).get("tau", 1.0) <= 0:
            raise KvtoolError("--cost-weight tau: a time in which to decay is more than 0")
        if workload.requests and int(config.train_fraction * workload.requests) == workload.requests:
            raise KvtoolError(
                "--train-fraction: no request is left to measure", "name a smaller share, as 50%"
            )
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
        self.reuse = reuse
        self.prefill: Prefill = shape.prefill() if shape else TYPICAL
        self.measured = slice(int(config.train_fraction * workload.requests), None)
        self.curve = LruCurve(workload, self.prefill)
        self.unbounded = rates_of(workload, matched_blocks(workload), self.prefill, self.measured)

    @cached_property
    def fitted(self) -> FittedReplay:
        """Replays under models of the reuse, the first one fitted to what is not measured."""
        return FittedReplay(self.workload, int(self.measured.start))

    @property
    def settings(self) -> list[tuple[str, int]]:
        """(policy, capacity in blocks) of each row."""
        capacities = sorted({self._blocks(text) for text in self.config.capacities})
        return [(policy, capacity) for capacity in capacities for policy in self._policies()]

    def run(self, advance: Callable[[int], None] = lambda _: None) -> dict[str, Any]:
        """The JSON document of the contract. advance: is told how many settings are done."""
        rows = []
        for policy, capacity in self.settings:
            rows.append(self.row(policy, capacity))
            advance(len(rows))
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

    @cached_property
    def bits(self) -> NDArray[np.uint64]:
        """Each request's bits in the sharing sketch, uint64 [r]."""
        return session_bits(self.workload, self.config.priorities)

    def row(self, policy: str, capacity: int, routing: str | None = None) -> dict[str, Any]:
        """One setting. Belady is one cache of the whole capacity, whatever the replicas."""
        routing = routing or self.config.routing
        split = self.config.replicas > 1 and policy != BELADY
        matched, extra = self._matched(policy, capacity, routing, None)
        rates = rates_of(self.workload, matched, self.prefill, self.measured)
        row = {
            "policy": policy,
            "capacity_blocks": capacity,
            "capacity_share": round(capacity / max(self.workload.distinct_blocks, 1), 6),
            "replicas": self.config.replicas if split else 1,
            "routing": routing if split else None,
            **rounded(rates),
            "max_load_over_mean": 1.0,
            **extra,
        }
        if self.resident is not None and policy != BELADY:
            row["prewarmed"] = self._prewarmed(policy, capacity, routing, self.resident)
        return row

    def single_cache(self, policy: str, capacity: int) -> dict[str, Any]:
        """The row of one cache with the capacity of all replicas."""
        return self.varied(replicas=1).row(policy, capacity)

    def varied(self, **changes: Any) -> "Simulation":
        """The same log and models under other settings, cold."""
        assert not {"train_fraction", "priorities"} & changes.keys()
        other = copy(self)
        other.config, other.resident = replace(self.config, **changes), None
        return other

    def _policy(self, name: str) -> Policy | Schedule:
        if name == FITTED and self.reuse is not None:
            partial_ends = bool(self.workload.partial.any())
            return fitted.by_table(self.reuse.table, self.workload.block_size, partial_ends)
        if name == FITTED:
            return self.fitted.schedule
        if name == COST and self.config.weights:
            weights = {**dict(zip(WEIGHTS, DEFAULTS, strict=True)), **dict(self.config.weights)}
            return replace(POLICIES.load(name), parameters=tuple(weights.values()))
        return POLICIES.load(name)

    def _matched(
        self, policy: str, capacity: int, routing: str, resident: Resident | None
    ) -> tuple[NDArray[np.int64], dict[str, Any]]:
        """Matched blocks of each request, int64 [r], and what else there is to say."""
        config = self.config
        if policy == BELADY:
            return belady(self.workload, capacity), {}
        if config.replicas > 1:
            from kvtool.analysis.routing import RoutingConfig, replay_replicas  # compiled at first import

            routed = replay_replicas(
                self.workload,
                self._policy(policy),
                capacity,
                RoutingConfig(
                    config.replicas,
                    routing,
                    config.hash_blocks,
                    seed=config.seed,
                    ttl=config.ttl,
                    admit=config.admit,
                ),
                resident,
                self.bits,
            )
            tokens = self.workload.prompt_tokens
            computed = tokens - capped(routed.matched, tokens, self.workload.block_size)
            computed[: self.measured.start] = 0
            imbalance = routed.load_over_mean(computed, config.replicas)
            return routed.matched, {"max_load_over_mean": round(imbalance, 6)}
        if config.timed is not None:
            from kvtool.analysis.timed import replay_timed

            settings = replace(config.timed, ttl=config.ttl, admit=config.admit)
            timed = replay_timed(self.workload, self._policy(policy), capacity, settings, resident, self.bits)
            return timed.matched, {"bypassed_requests": timed.bypassed, "most_held_blocks": timed.most_held}
        return (
            replay(
                self.workload, self._policy(policy), capacity, config.ttl, resident, config.admit, self.bits
            ),
            {},
        )

    def _prewarmed(self, policy: str, capacity: int, routing: str, resident: Resident) -> dict[str, Any]:
        matched, _ = self._matched(policy, capacity, routing, resident)
        rates = rates_of(self.workload, matched, self.prefill, self.measured)
        return {
            "blocks": min(len(resident.nodes), capacity // self.config.replicas),
            "tokens": round(rates.tokens, 6),
            "hit_blocks": rates.hit_blocks,
            "rebuild_flops_saved": round(rates.rebuild_flops_saved, 6),
        }

    def tier_rows(self) -> list[dict[str, Any]]:
        """What each of the tiers does under each policy."""
        config = self.config
        if not config.tiers:
            return []
        rate = None if config.timed is None else config.timed.prefill_rate
        speeds = {}
        if config.tier_speeds:
            if self.shape is None:
                raise KvtoolError("--tier-speed: bytes need --model", "name a model folder, or embedded")
            block = self.shape.bytes_per_token() * self.workload.block_size
            speeds = {name: speed / block for name, speed in config.tier_speeds}
        tiers = [(name, self._blocks(text, f"--tiers {name}=")) for name, text in config.tiers]
        rows = []
        for policy in self._policies():
            if policy == BELADY:
                continue
            cold = self._tiers_from(None, policy, tiers, rate, speeds)
            if self.resident is not None:
                warm = self._tiers_from(self.resident, policy, tiers, rate, speeds)
                for row, prewarmed in zip(cold, warm, strict=True):
                    row["prewarmed"] = {name: prewarmed[name] for name in PREWARMED}
            rows += [{"policy": policy, **row} for row in cold]
        return rows

    def _tiers_from(
        self,
        start: Resident | None,
        policy: str,
        tiers: list[tuple[str, int]],
        rate: float | None,
        speeds: dict[str, float],
    ) -> list[dict[str, Any]]:
        from kvtool.analysis.tiered import replay_tiers  # compiled at first import

        config = self.config
        tiered = replay_tiers(
            self.workload,
            self._policy(policy),
            [blocks for _, blocks in tiers],
            [name != "host" for name, _ in tiers] if config.tiers_keep else [],
            config.admit,
            self.bits,
            config.ttl,
            start,
        )
        latencies = dict(config.tier_latencies)
        return tier_rows(self.workload, tiered, tiers, self.measured, rate, speeds, latencies)

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

    def _blocks(self, capacity: str, option: str = "--capacity ") -> int:
        return parse_capacity(capacity, self.workload, self.shape, option)


def rounded(rates: Rates) -> dict[str, Any]:
    """Rates as JSON has them, six digits."""
    return {
        name: value if isinstance(value, int) else round(value, 6) for name, value in asdict(rates).items()
    }
