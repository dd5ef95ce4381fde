"""Other capacities, policies and routings for the report page, within a bounded amount of replay."""

import numpy as np

from kvtool.analysis.analyze import Analysis
from kvtool.analysis.curve import LruCurve
from kvtool.analysis.memory import ModelShape
from kvtool.analysis.simulate import BELADY, SimulateConfig, Simulation
from kvtool.page import Capacity, Curve, MemoryModel, Route, Routing

ACCESSES = 60_000_000
"""Block accesses that may be replayed for one page: some ten seconds."""
POLICIES = ("cost", "lfu", "gdsf", BELADY)
"""Beside LRU, whose whole curve is known from one pass. `fitted` needs a model of the log and half of it."""
FEWEST, MOST = 4, 10
"""Capacities at which a policy is replayed."""
DENSE = 64
"""Points of the LRU curve."""
REPLICAS = 4
SHARE = 0.1
"""Capacity at which routings are compared, as a share of the distinct blocks."""

KNOWN_MODELS = (
    MemoryModel("Llama 3.1 8B", 131_072),
    MemoryModel("Llama 3.1 70B", 327_680),
    MemoryModel("Qwen3 8B", 147_456),
    MemoryModel("Qwen3 32B", 262_144),
    MemoryModel("SmolLM2 135M", 23_040),
)
"""2 x layers x KV heads x head dimension x 2 bytes, from each model's public config.json."""


def lru_points(curve: LruCurve, most: int) -> Curve:
    """LRU at DENSE capacities, evenly spaced in the logarithm."""
    sizes = np.unique(np.geomspace(1, max(most, 1), DENSE).round().astype(np.int64)).tolist()
    return Curve("lru", [(size, round(curve.at(size).tokens, 6)) for size in sizes])


def capacity(analysis: Analysis, shape: ModelShape | None) -> Capacity:
    """Hit rate against capacity per policy, Belady's optimum among them; fewer of both for a long log."""
    distinct = max(analysis.runs.distinct_blocks, 1)
    accesses = max(int(analysis.runs.lengths.sum()), 1)
    replays = ACCESSES // accesses
    policies = POLICIES if replays >= FEWEST * len(POLICIES) else (BELADY,)
    points = min(replays // len(policies), MOST)
    curves = [lru_points(analysis.curve, distinct)]
    if points >= FEWEST:
        spaced = np.geomspace(max(distinct // 200, 1), distinct, points)
        sizes = np.unique(spaced.round().astype(np.int64))
        simulation = Simulation(analysis.workload, SimulateConfig())
        for policy in policies:
            rates = [(size, simulation.row(policy, size)["tokens"]) for size in sizes.tolist()]
            curves.append(Curve(policy, rates))
    return Capacity(analysis.runs.block_size, distinct, curves, memory_models(shape))


def memory_models(shape: ModelShape | None) -> list[MemoryModel]:
    """The chosen model first, then well-known ones to compare with."""
    own = [] if shape is None else [MemoryModel(shape.name, shape.bytes_per_token())]
    return [*own, *KNOWN_MODELS]


def routing(analysis: Analysis) -> Routing | None:
    """Every routing over REPLICAS caches under LRU; None for a log too long to replay so often, or tiny."""
    accesses = int(analysis.runs.lengths.sum())
    size = max(round(SHARE * analysis.runs.distinct_blocks), 1)
    if not 0 < accesses * 7 <= ACCESSES or size < REPLICAS:
        return None
    from kvtool.analysis.routing import ROUTINGS  # compiled at first import

    simulation = Simulation(analysis.workload, SimulateConfig(replicas=REPLICAS))
    rows = [simulation.row("lru", size, name) for name in ROUTINGS]
    return Routing(
        replicas=REPLICAS,
        capacity_blocks=size,
        policy="lru",
        single=simulation.single_cache("lru", size)["tokens"],
        rows=[Route(row["routing"], row["tokens"], row["max_load_over_mean"]) for row in rows],
    )
