"""kvtool simulate: a log under other capacities, policies, replicas and tiers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvtool.cache.policies import POLICIES
from kvtool.errors import KvtoolError
from kvtool.options import (
    Assignment,
    Rate,
    Size,
    format_options,
    given_options,
    output_format,
    prompt_options,
    report_option,
    request_options,
)
from kvtool.renderers import RENDERERS

if TYPE_CHECKING:
    from kvtool.analysis.resident import Resident
    from kvtool.analysis.reuse_model import ReuseModel
    from kvtool.analysis.simulation_advice import Known
    from kvtool.analysis.timed import TimedConfig
    from kvtool.analysis.workload import Workload
    from kvtool.report import Report


@dataclass(frozen=True)
class Config:
    """All options of simulate. capacities: blocks, shares or bytes; ttl, session_gap: seconds."""

    logs: tuple[str, ...]
    capacities: tuple[str, ...] = ("1%", "3%", "5%", "10%", "30%", "100%")
    policies: tuple[str, ...] = ("lru", "cost", "belady")
    model: str | None = None
    replicas: int = 1
    routing: str = "prefix"
    hash_blocks: int = 2
    tiers: tuple[tuple[str, str], ...] = ()
    tier_speeds: tuple[tuple[str, int], ...] = ()
    tier_latencies: tuple[tuple[str, float], ...] = ()
    tiers_keep: bool = False
    admit: int = 1
    cost_weights: tuple[tuple[str, str], ...] = ()
    priorities: tuple[tuple[str, str], ...] = ()
    prefetch: bool = False
    resident: Path | None = None
    reuse_model: Path | None = None
    ttl: float | None = None
    train_fraction: float = 0.0
    seed: int = 0
    prefill_rate: float | None = None
    decode_rate: float | None = None
    cache_outputs: bool = False
    block_size: int | None = None
    tokenizer: str | None = None
    chat_template: str = "auto"
    where: str | None = None
    session_gap: float | None = None
    share_tenants: bool = False
    format: str | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)
    report: Path | None = None
    show_values: bool = False
    output_format: str = "terminal"


def as_tiers(_: click.Context, __: click.Parameter, value: str | None) -> tuple[tuple[str, str], ...]:
    """`device=5%,host=20%` -> pairs, fastest first."""
    kind = Assignment()
    return tuple(kind.convert(part.strip(), None, None) for part in value.split(",")) if value else ()


def as_speeds(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[tuple[str, int], ...]:
    """`host=20GiB,disk=3GiB` -> pairs with bytes."""
    pairs = as_tiers(context, parameter, value)
    return tuple((name, Size().convert(size, parameter, context)) for name, size in pairs)


def as_latencies(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[tuple[str, float], ...]:
    """`host=50us,disk=5ms` -> pairs with seconds."""
    return tuple((name, duration(text)) for name, text in as_tiers(context, parameter, value))


def duration(text: str) -> float:
    """`50us`, `5ms`, `0.1s` or `0.1` -> seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(us|µs|ms|s)?", text.strip())
    if not found:
        raise click.BadParameter(f"{text!r} is not a time such as 50us, 5ms or 0.1s")
    return float(found[1]) * {"us": 1e-6, "µs": 1e-6, "ms": 1e-3}.get(found[2], 1.0)


def as_numbers(option: str, pairs: tuple[tuple[str, str], ...], kind: type[float]) -> tuple[Any, ...]:
    """NAME=TEXT pairs with numbers: a priority is an int from 1 on, a weight a float from 0 on."""
    numbers = []
    for name, text in pairs:
        try:
            number = kind(text)
        except ValueError:
            number = -1
        if not (1 if kind is int else 0) <= number < float("inf"):
            raise KvtoolError(f"{option} {name}={text}: not a number such as {'4' if kind is int else '0.5'}")
        numbers.append((name, number))
    return tuple(numbers)


@click.command(
    epilog="Example: kvtool simulate trace.jsonl --capacity 5% --policy all --replicas 4 --routing sticky"
)
@click.argument("logs", nargs=-1, required=True)
@click.option(
    "--capacity",
    "capacities",
    multiple=True,
    default=Config.capacities,
    show_default=True,
    help="Blocks (1828), a share of the distinct blocks (5%), or bytes (8GiB, with --model).",
)
@click.option(
    "--policy",
    "policies",
    type=click.Choice([*POLICIES.names(), "belady", "all"]),
    multiple=True,
    default=Config.policies,
    show_default=True,
)
@click.option("--model", help="Model folder or embedded: bytes per block, FLOPs. Only config.json is read.")
@click.option("--replicas", type=click.IntRange(min=1), default=Config.replicas, show_default=True)
@click.option(
    "--routing",
    type=click.Choice(["random", "round-robin", "sticky", "hash", "prefix", "cost"]),
    default=Config.routing,
    show_default=True,
)
@click.option(
    "--hash-blocks",
    type=click.IntRange(min=1),
    default=Config.hash_blocks,
    show_default=True,
    help="First blocks that --routing hash looks at, and that prefix must find: more than all share.",
)
@click.option(
    "--tiers",
    callback=as_tiers,
    metavar="NAME=SIZE,...",
    help="Hit rate per tier, such as device=5%,host=20%.",
)
@click.option(
    "--tier-speed",
    "tier_speeds",
    callback=as_speeds,
    metavar="NAME=BYTES,...",
    help="Bytes a second that loads from a tier reach, such as host=20GiB; with --model and --prefill-rate: "
    "time saved.",
)
@click.option(
    "--tier-latency",
    "tier_latencies",
    callback=as_latencies,
    metavar="NAME=TIME,...",
    help="What a request waits for a tier before its blocks come, such as host=50us,disk=5ms.",
)
@click.option(
    "--tiers-keep",
    is_flag=True,
    help="Lower tiers but `host` keep a copy of what goes up, as in serve; otherwise capacities add up.",
)
@click.option(
    "--admit",
    type=click.IntRange(min=1),
    default=Config.admit,
    show_default=True,
    metavar="N",
    help="Keep a block from its N-th request on; with --tiers, write it to a lower tier then.",
)
@click.option(
    "--cost-weight",
    "cost_weights",
    type=Assignment(),
    multiple=True,
    metavar="NAME=VALUE",
    help="Of --policy cost: tau, frequency, rebuild, sharing, growth.",
)
@click.option(
    "--priority",
    "priorities",
    type=Assignment(),
    multiple=True,
    metavar="SESSION=N",
    help="Of --policy cost: these sessions, such as 'vip-*=4', count as N when they share a block.",
)
@click.option(
    "--prefetch",
    is_flag=True,
    help="Learn from the training part which prompt follows, and fetch it to the first of --tiers (lru).",
)
@click.option(
    "--resident",
    type=click.Path(exists=True, path_type=Path),
    metavar="SHARDS|ANALYSIS",
    help="Beside the cold start, one with these blocks in the cache: those of a shard folder, or what two "
    "requests of an analysis share.",
)
@click.option(
    "--reuse-model",
    type=click.Path(exists=True, path_type=Path),
    metavar="SHARDS|FILE",
    help="Of --policy fitted: rank by this reuse.json, as serve with these shards does; by default it learns "
    "from the log as it goes.",
)
@click.option("--ttl", type=click.FloatRange(min=0), metavar="SECONDS", help="Blocks expire unless touched.")
@click.option(
    "--train-fraction",
    type=Rate(),
    default=Config.train_fraction,
    help="Fit and warm on the first part, measure on the rest.",
)
@click.option("--seed", type=int, default=Config.seed, show_default=True, help="Of --routing random.")
@click.option(
    "--prefill-rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="TOKENS/S",
    help="Requests overlap: blocks are of use once computed, and held until the last token.",
)
@click.option(
    "--decode-rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="TOKENS/S",
    help="As --prefill-rate, for the output of one request.",
)
@click.option("--cache-outputs", is_flag=True, help="Generated tokens serve the session's next turn.")
@click.option("--block-size", type=click.IntRange(min=1), help="Tokens per block (32, or the trace's own).")
@prompt_options
@request_options
@format_options
@report_option
@click.option("--show-values", is_flag=True, help="Print the log's session names in the report.")
@output_format("terminal", "json", "markdown")
def command(**options: Any) -> None:
    """Hit rate of LOGS, or of an ANALYSIS.duckdb, at other capacities, policies, replicas and tiers."""
    config = Config(**options)
    RENDERERS.load(config.output_format)(run(config))


def run(config: Config) -> "Report":
    """The report of all settings."""
    from kvtool.analysis.memory import read_shape
    from kvtool.analysis.simulate import SimulateConfig, Simulation
    from kvtool.analysis.simulation_page import simulation_page
    from kvtool.analysis.simulation_report import present
    from kvtool.files import check_targets
    from kvtool.logs.sources import expand
    from kvtool.progress import counted
    from kvtool.renderers.html import write_page

    check_targets(expand(config.logs), config.report)
    shape = read_shape(config.model) if config.model else None
    workload, known, notes = load(config)
    simulation = Simulation(
        workload,
        SimulateConfig(
            config.capacities,
            config.policies,
            config.replicas,
            config.routing,
            config.hash_blocks,
            config.train_fraction,
            config.ttl,
            config.tiers,
            config.tier_speeds,
            config.tier_latencies,
            config.tiers_keep,
            config.prefetch,
            config.seed,
            timing(config),
            config.admit,
            as_numbers("--cost-weight", config.cost_weights, float),
            as_numbers("--priority", config.priorities, int),
        ),
        shape,
        prewarmed(config.resident, workload) if config.resident else None,
        known,
        learned(config.reuse_model) if config.reuse_model else None,
    )
    with counted("settings simulated", len(simulation.settings)) as advance:
        report = present(simulation.run(advance), notes)
    if config.report is not None:
        report.page = simulation_page(
            simulation, report.data, config.logs, given_options(config), config.show_values
        )
        write_page(report, config.report)
    return report


def prewarmed(path: Path, workload: "Workload") -> "Resident":
    """The blocks of a shard folder or of an earlier log's analysis, as a start for this log."""
    from kvtool.analysis.resident import resident_in, stored_of
    from kvtool.analysis.store import is_analysis, load_analysis
    from kvtool.engine.storage.shards import open_shards
    from kvtool.engine.storage.stored import stored_blocks

    if not is_analysis(path):
        return resident_in(workload, stored_blocks(open_shards(path)))
    earlier = load_analysis(path)
    if earlier.encoder_fingerprint != workload.encoder_fingerprint:
        raise KvtoolError(
            f"--resident {path}: it was made with another tokenizer or template than this log's",
            "name the same --tokenizer and --chat-template",
        )
    return resident_in(workload, stored_of(earlier))


def learned(path: Path) -> "ReuseModel":
    """The reuse model of a shard folder, or of a file."""
    from kvtool.engine.storage.reuse import REUSE, read_reuse

    folder = path if path.is_dir() else path.parent
    model = read_reuse(folder) if path.is_dir() or path.name == REUSE else None
    if model is None:
        raise KvtoolError(
            f"--reuse-model {path}: there is no {REUSE}",
            "kvtool prewarm writes it beside shards, from a log with times and 200 requests",
        )
    return model


def timing(config: Config) -> "TimedConfig | None":
    """How requests overlap; None if no option asks for it."""
    if config.prefill_rate is None and config.decode_rate is None and not config.cache_outputs:
        return None
    from kvtool.analysis.timed import TimedConfig

    never = float("inf")
    return TimedConfig(config.prefill_rate or never, config.decode_rate or never, config.cache_outputs)


def load(config: Config) -> tuple["Workload", "Known", list[str]]:
    """The workload of the logs, or of a saved analysis, what else is known, and what the reader must know."""
    from kvtool.analysis.analyze import AnalyzeConfig, read_workload, sweep
    from kvtool.analysis.simulation_advice import Known
    from kvtool.analysis.store import is_analysis, load_analysis, load_document
    from kvtool.logs.reader import open_log
    from kvtool.progress import counted
    from kvtool.tokens import load_encoder

    if any(is_analysis(path) for path in config.logs):
        if len(config.logs) > 1:
            raise KvtoolError("an analysis stands alone: name one .duckdb file, or logs")
        unused = [name for name, _ in given_options(config)] + ["--block-size"] * bool(config.block_size)
        if unused:
            raise KvtoolError(
                f"{unused[0]} is for reading logs, and {config.logs[0]} is an analysis of one",
                f"name the log, or make another analysis with kvtool analyze {unused[0]}",
            )
        return load_analysis(config.logs[0]), Known.of(load_document(config.logs[0])), []
    log = open_log(config.logs, format=config.format, mapping=config.mapping)
    notes: list[str] = []
    sizes = () if config.block_size is None else (config.block_size,)
    with counted("requests read") as advance:
        reading = read_workload(
            log,
            lambda: load_encoder(config.tokenizer, config.chat_template, notes.append),
            AnalyzeConfig(sizes, config.share_tenants, config.where, config.session_gap, held_tokens=0),
            advance,
        )
    known = Known(sweep(reading.base, sizes))
    return reading.workload.unfolded(), known, [*map(str, log.skipped), *log.notes, *notes, *reading.notes]
