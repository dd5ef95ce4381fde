"""Simulation speed and policy quality, measured in one run.

    python benchmarks/simulate.py TRACE.jsonl...            speed, peers, quality of every policy
    python benchmarks/simulate.py TRACE.jsonl --only quality
    python benchmarks/simulate.py TRACE.jsonl --large       also 100 million accesses and their memory

Peers are used where they are installed, each best in an environment of its own put on PYTHONPATH:
libcachesim (its LRU knows no prefixes: for speed a hit behind a missing parent counts)
and kvcache-simulator (its LRU is prefix-aware). Speeds are of the pure loop in CPU
time, after loading, the best of five; kvcache-simulator's is of its whole C++ run, which reads the ids anew.
"""

import argparse
import importlib.util
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from simulate_policies import quality

from kvtool.analysis.analyze import AnalyzeConfig, read_workload
from kvtool.analysis.belady import belady
from kvtool.analysis.curve import LruCurve
from kvtool.analysis.replay import pool_state, replay, replay_loop, session_bits
from kvtool.analysis.sessions import infer_sessions
from kvtool.analysis.workload import Workload
from kvtool.cache.policies import POLICIES
from kvtool.logs.reader import open_log
from kvtool.tokens import load_encoder

SHARES = (0.01, 0.03, 0.05, 0.1, 0.3)


def cpu_seconds() -> float:
    """CPU time of this process and its finished children: all that is compared runs on one core."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def best(run: Callable[[], object], setup: Callable[[], object] = lambda: None, times: int = 5) -> float:
    """CPU seconds of the fastest of several runs; `setup` is not counted."""
    fastest = float("inf")
    for _ in range(times):
        setup()
        start = cpu_seconds()
        run()
        fastest = min(fastest, cpu_seconds() - start)
    return fastest


def loop_seconds(workload: Workload, policy: str, capacity: int, times: int = 5) -> float:
    """The compiled loop alone, on a fresh cache each time."""
    chosen = POLICIES.load(policy)
    log = (workload.nodes, workload.offsets, workload.clock, session_bits(workload), workload.output_tokens)
    matched = np.empty(workload.requests, np.int64)
    states: list[object] = []

    def setup() -> None:
        states[:] = [pool_state(workload, chosen, capacity)]

    return best(
        lambda: replay_loop(states[0], chosen.key, chosen.ages, *log, np.inf, 1, matched), setup, times
    )


def libcachesim_seconds(workload: Workload, capacity: int) -> float | None:
    """Its LRU in C over the same accesses, from its own binary trace format."""
    if importlib.util.find_spec("libcachesim") is None:
        return None
    import libcachesim

    fields = [("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")]
    rows = np.zeros(len(workload.nodes), np.dtype(fields))
    rows["id"] = workload.nodes.astype(np.uint64) + 1
    rows["size"], rows["next"] = 1, -1
    with tempfile.NamedTemporaryFile(suffix=".oracleGeneral") as file:
        rows.tofile(file.name)

        def run() -> None:
            reader = libcachesim.TraceReader(file.name, libcachesim.TraceType.ORACLE_GENERAL_TRACE)
            libcachesim.LRU(cache_size=capacity).process_trace(reader)

        return best(run)


def kvcache_simulator_seconds(trace: str, workload: Workload, capacity: int) -> float | None:
    """Its C++ core, one policy at one capacity."""
    if importlib.util.find_spec("kvcache_sim") is None:
        return None
    from kvcache_sim.cpp_backend import run_cpp_sweep
    from kvcache_sim.trace import parse_trace_file

    parsed = parse_trace_file(trace, block_size=workload.block_size)

    def run() -> None:
        run_cpp_sweep(parsed, capacities=[capacity], policies=["lru"], warmup_requests=0)

    run()  # compiles its core the first time
    return best(run)


def speed(trace: str, workload: Workload) -> None:
    """Accesses per second of ours and of the peers."""
    accesses = len(workload.nodes)
    print(f"\n## Speed: {Path(trace).name}, {accesses:,} block accesses, millions a second\n")
    print("| capacity | " + " | ".join(["lru", "lfu-da", "libcachesim lru", "kvcache-simulator lru"]) + " |")
    print("|--:|--:|--:|--:|--:|")
    for share in SHARES:
        capacity = round(share * workload.distinct_blocks)
        seconds = [
            loop_seconds(workload, "lru", capacity),
            loop_seconds(workload, "lfu-da", capacity),
            libcachesim_seconds(workload, capacity),
            kvcache_simulator_seconds(trace, workload, capacity) if workload.ready_made else None,
        ]
        cells = ["-" if second is None else f"{accesses / second / 1e6:.1f}" for second in seconds]
        print(f"| {share:.0%} | " + " | ".join(cells) + " |")
    print(f"\nwhole LRU curve: {best(lambda: LruCurve(workload)) * 1e3:.0f} ms")
    print(
        f"Belady at 5%: {best(lambda: belady(workload, round(0.05 * workload.distinct_blocks))) * 1e3:.0f} ms"
    )


def print_quality(trace: str, workload: Workload) -> None:
    """Ours and libcachesim's, policy by policy."""
    print(f"\n## Quality: {Path(trace).name}, second half")
    print("\nBlock hits over those of lru, in brackets the share of the gap to Belady that is closed.\n")
    for line in quality(workload, SHARES):
        print(line, flush=True)


def large() -> None:
    """100 million accesses by sessions that grow turn by turn; peak memory of the replay."""
    sessions, turns, step = 200_000, 10, 9
    print("\n## 100 million accesses\n")
    distinct = sessions * turns * step
    parent = np.arange(-1, distinct - 1, dtype=np.int32)
    depth = np.tile(np.arange(turns * step, dtype=np.int32), sessions)
    parent[depth == 0] = -1
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(sessions), turns))
    turn = np.empty(len(order), np.int64)
    turn[np.argsort(order, kind="stable")] = np.tile(np.arange(turns), sessions)
    workload = read_arrays(parent, depth, order * turns * step + (turn + 1) * step - 1)
    accesses = len(workload.nodes)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = cpu_seconds()
    replay(workload, POLICIES.load("lru"), distinct // 20)
    seconds = cpu_seconds() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(
        f"{accesses:,} accesses to {distinct:,} blocks at 5%:",
        f"{accesses / seconds / 1e6:.1f} million a second,",
        f"{grown / distinct:.0f} bytes per distinct block beyond the log itself",
    )


def read_arrays(parent: np.ndarray, depth: np.ndarray, leaf: np.ndarray) -> Workload:
    """A bare workload of a given trie."""
    import pyarrow as pa

    from kvtool.analysis.workload import META

    count, nodes = len(leaf), len(parent)
    return Workload(
        512,
        True,
        "",
        np.arange(count, dtype=np.int64),
        np.full(count, -1, np.int32),
        [],
        np.zeros(count, np.int32),
        [(None, None)],
        (depth[leaf].astype(np.int64) + 1) * 512,
        np.full(count, -1, np.int64),
        leaf.astype(np.int32),
        np.zeros(count, np.bool_),
        parent,
        depth,
        np.zeros(nodes, np.int32),
        pa.table({name: pa.nulls(0) for name in META.names}),
        np.zeros((1, 2), np.uint32),
    )


def main() -> None:
    """Print Markdown tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--only", choices=["speed", "quality"])
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    for trace in options.traces:
        runs = read_workload(open_log([trace]), load_encoder, AnalyzeConfig(held_tokens=0)).workload
        workload = runs.unfolded()
        if (workload.session < 0).all():
            workload = infer_sessions(workload)
        if options.only != "quality":
            speed(trace, workload)
        if options.only != "speed":
            print_quality(trace, workload)
    if options.large:
        large()


if __name__ == "__main__":
    main()
