"""The report page of a simulation: the simulated rows as curves, and the log that they were simulated on."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvtool.analysis.analysis_page import block_sizes, files
from kvtool.analysis.hit_rates import hit_rates
from kvtool.analysis.next_steps import COUNTED, READ, Options, command, given
from kvtool.analysis.simulate import BELADY, Simulation
from kvtool.analysis.store import is_analysis
from kvtool.analysis.timeline import over_time, sessions
from kvtool.analysis.what_if import lru_points, memory_models
from kvtool.page import Capacity, Curve, Figure, Page, Route, Routing, Step


def simulation_page(
    simulation: Simulation,
    document: Mapping[str, Any],
    logs: Sequence[str],
    options: Options,
    show_values: bool,
) -> Page:
    """The page of `document`, which `simulation` has made. options: see `next_steps`."""
    workload, config = simulation.workload, simulation.config
    rates = hit_rates(workload)
    return Page(
        title="Cache simulation",
        subtitle=f"{files(logs)}: {document['requests']['measured']:,} of {document['requests']['all']:,} "
        f"requests measured, {document['distinct_blocks']:,} distinct blocks of {document['block_size']}",
        figures=_figures(document),
        redacted=not show_values,
        capacity=Capacity(
            block_size=workload.block_size,
            distinct_blocks=workload.distinct_blocks,
            curves=_curves(simulation, document),
            models=memory_models(simulation.shape),
        ),
        block_sizes=block_sizes(simulation.known.block_sizes),
        block_size=workload.block_size,
        over_time=over_time(workload, rates),
        sessions=sessions(workload, rates, named=show_values),
        routing=_routing(simulation, document) if config.replicas > 1 else None,
        steps=_steps(document, logs, options),
        with_tables=True,
    )


def _figures(document: Mapping[str, Any]) -> list[Figure]:
    rows = document["rows"]
    unbounded = document["unbounded"]["tokens"]
    figures = [Figure("Unbounded cache", f"{unbounded:.1%}", "of prompt tokens: what the log has to give")]
    smallest = [row for row in rows if row["capacity_blocks"] == rows[0]["capacity_blocks"]] if rows else []
    online = [row for row in smallest if row["policy"] != BELADY]
    if online:
        best = max(online, key=lambda row: row["tokens"])
        size = f"with {best['capacity_blocks']:,} blocks, {best['capacity_share']:.1%} of the distinct ones"
        figures.append(Figure(f"Best policy: {best['policy']}", f"{best['tokens']:.1%}", size, strong=True))
    figures += [
        Figure("Optimum there", f"{row['tokens']:.1%}", "Belady: it knows the future")
        for row in smallest
        if row["policy"] == BELADY
    ]
    return figures


def _curves(simulation: Simulation, document: Mapping[str, Any]) -> list[Curve]:
    """A curve per policy; LRU's in full where the rows are of one cache over the whole log."""
    config = simulation.config
    whole = config.replicas == 1 and not config.train_fraction and config.ttl is None and config.timed is None
    points: dict[str, list[tuple[int, float]]] = {}
    for row in document["rows"]:
        points.setdefault(row["policy"], []).append((row["capacity_blocks"], row["tokens"]))
    if whole:
        points.pop("lru", None)
    full = [lru_points(simulation.curve, simulation.workload.distinct_blocks)] if whole else []
    return full + [Curve(policy, rates) for policy, rates in points.items()]


def _routing(simulation: Simulation, document: Mapping[str, Any]) -> Routing | None:
    from kvtool.analysis.routing import ROUTINGS  # compiled at first import

    online = [row for row in document["rows"] if row["policy"] != BELADY]
    if not online:
        return None
    policy, size = online[0]["policy"], online[0]["capacity_blocks"]
    rows = [simulation.row(policy, size, name) for name in ROUTINGS]
    return Routing(
        replicas=simulation.config.replicas,
        capacity_blocks=size,
        policy=policy,
        single=simulation.single_cache(policy, size)["tokens"],
        rows=[Route(row["routing"], row["tokens"], row["max_load_over_mean"]) for row in rows],
    )


TITLES = {
    "routing": "Route differently",
    "block-size": "Change the block size",
    "capacity": "Give the cache room",
    "policy": "Change the policy",
    "prompts": "Repair the prompts",
}


def _steps(document: Mapping[str, Any], logs: Sequence[str], options: Options) -> list[Step]:
    count = given(options, *READ, *COUNTED)
    saved = is_analysis(logs[0])
    steps = []
    for piece in document["advice"]:
        code, evidence = piece["code"], piece["evidence"]
        line = ""
        if code == "capacity":
            line = command(
                "simulate", *logs, *count, "--capacity", str(evidence["blocks"]["90%"]), "--policy", "all"
            )
        elif code == "block-size" and not saved:
            size = str(evidence["best"]["block_size"])
            line = command("simulate", *logs, *count, "--block-size", size)
        elif code == "routing":
            best = max(evidence["by_routing"], key=lambda name: float(evidence["by_routing"][name]))
            replicas = str(document["rows"][0]["replicas"])
            line = command("simulate", *logs, *count, "--replicas", replicas, "--routing", best)
        elif code == "policy":
            best = max(evidence["by_policy"], key=lambda name: float(evidence["by_policy"][name]))
            line = command("serve", "--policy", best)
        elif code == "prompts" and not saved:
            line = command("lint", *logs, *given(options, "--format", "--tokenizer", "--chat-template"))
        steps.append(Step(TITLES.get(code, code), piece["text"], line))
    return steps
