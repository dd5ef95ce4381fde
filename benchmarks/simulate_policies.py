"""Quality of policies on a log's second half: ours, and every online policy of libcachesim, where installed.

A peer's cache knows no prefixes: what of a request it holds up to the first miss counts as hit, since an
attention cannot use a block whose parent is gone. Each peer runs in a process of its own, because some
end theirs; what gave no figures is named.
"""

import importlib.util
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

import numpy as np

from kvtool.analysis.fitted_replay import FittedReplay
from kvtool.analysis.simulate import BELADY, FITTED, SimulateConfig, Simulation
from kvtool.analysis.workload import Workload
from kvtool.cache.policies import POLICIES

OFFLINE = ("Belady", "BeladySize", "PluginCache", "CacheBase")
"""Classes of libcachesim that know the future, or are no policy."""


def quality(workload: Workload, shares: tuple[float, ...]) -> Iterator[str]:
    """Lines of a Markdown table; caches are warmed (and models fitted) on the first half."""
    half = workload.requests // 2
    capacities = [round(share * workload.distinct_blocks) for share in shares]
    names = POLICIES.names()
    config = SimulateConfig(tuple(map(str, capacities)), ("all",), train_fraction=0.5)
    rows = Simulation(workload, config).run()["rows"]
    hits = {name: [row["hit_blocks"] for row in rows if row["policy"] == name] for name in (*names, BELADY)}
    frozen = FittedReplay(workload, half, learn=False)
    hits[f"{FITTED}, frozen"] = [int(frozen.matched(capacity)[half:].sum()) for capacity in capacities]
    silent = []
    for name in peers():
        found = [second_half(name, workload, capacity) for capacity in capacities]
        if None in found:
            silent.append(name)
        else:
            hits[f"libcachesim {name}"] = found
    lru, optimum = hits.pop("lru"), hits.pop(BELADY)
    yield "| policy | " + " | ".join(f"{share:.0%}" for share in shares) + " |"
    yield "|---|" + "--:|" * len(shares)
    yield "| lru | " + " | ".join(f"{count:,}" for count in lru) + " |"
    ratios = [best / max(base, 1) for best, base in zip(optimum, lru, strict=True)]
    yield f"| {BELADY} | " + " | ".join(f"{ratio:.3f}" for ratio in ratios) + " |"
    for name, counts in hits.items():
        cells = [cell(*three) for three in zip(counts, lru, optimum, strict=True)]
        yield f"| {name} | " + " | ".join(cells) + " |"
    if silent:
        yield f"\nNo figures (not in this build, or it ended its process): {', '.join(silent)}"


def cell(count: int, base: int, best: int) -> str:
    """Hits over LRU's, and the share of the gap closed where the gap is 1 % of LRU's hits or more."""
    share = f" ({(count - base) / (best - base):+.0%})" if best - base >= 0.01 * base > 0 else ""
    return f"{count / max(base, 1):.3f}{share}"


def peers() -> list[str]:
    """Names of libcachesim's online policies, none where it is not installed."""
    if importlib.util.find_spec("libcachesim") is None:
        return []
    import libcachesim
    from libcachesim import cache

    kinds = {name: kind for name, kind in vars(cache).items() if isinstance(kind, type)}
    return sorted(
        name
        for name, kind in kinds.items()
        if issubclass(kind, libcachesim.CacheBase) and name not in OFFLINE
    )


def second_half(name: str, workload: Workload, capacity: int) -> int | None:
    """Hit blocks of prefixes in the second half; None if the peer cannot be run."""
    with ProcessPoolExecutor(1, get_context("fork")) as own:
        try:
            return own.submit(_second_half, name, workload, capacity).result()
        except (AttributeError, RuntimeError, BrokenProcessPool):
            return None


def _second_half(name: str, workload: Workload, capacity: int) -> int:
    import libcachesim

    cache = getattr(libcachesim, name)(cache_size=capacity)
    request = libcachesim.Request()
    request.obj_size = 1
    hits = np.zeros(workload.requests, np.int64)
    nodes = (workload.nodes.astype(np.int64) + 1).tolist()
    for number in range(workload.requests):
        request.clock_time = int(workload.clock[number])
        whole = True
        for node in nodes[workload.offsets[number] : workload.offsets[number + 1]]:
            request.obj_id = node
            whole = cache.get(request) and whole
            hits[number] += whole
    return int(hits[workload.requests // 2 :].sum())
