"""kvtool prewarm: compute a log's hot prefixes once and write them as verified shards."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from kvtool.engine.storage.codecs import AUTO, CODECS
from kvtool.errors import KvtoolError
from kvtool.options import (
    NamedSizes,
    Positive,
    format_options,
    given_options,
    kept_secret,
    output_format,
    report_option,
)
from kvtool.renderers import RENDERERS

if TYPE_CHECKING:
    from kvtool.analysis.workload import Workload
    from kvtool.engine.compute.model import Model
    from kvtool.report import Report


@dataclass(frozen=True)
class Config:
    """All options of prewarm. budgets: bytes by tier; block_size: None for 32, or the analysis' own."""

    logs: tuple[str, ...] = ()
    analysis: Path | None = None
    out: Path | None = None
    model: str = "embedded"
    format: str | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)
    chat_template: str = "auto"
    block_size: int | None = None
    share_tenants: bool = False
    budgets: tuple[tuple[str, int], ...] = ()
    tenant_budgets: tuple[tuple[str, int], ...] = ()
    min_requests: int = 2
    codec: str = "raw"
    max_kl: float | None = None
    protect: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    prefill_rate: float | None = None
    tier_speeds: tuple[tuple[str, int], ...] = ()
    signing_key: Path | None = None
    plan_out: Path | None = None
    dry_run: bool = False
    report: Path | None = None
    show_values: bool = False
    output_format: str = "terminal"


@click.command(epilog="Example: kvtool prewarm --logs logs.jsonl --budget 2GiB --out shards")
@click.option("--logs", multiple=True, help="Files, folders, globs or '-'; repeat for more.")
@click.option(
    "--from", "analysis", type=click.Path(path_type=Path), help="An analysis instead: analyze -o FILE.duckdb."
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder of the shards.")
@click.option(
    "--model", default=Config.model, show_default=True, help="embedded, or a Hugging Face model directory."
)
@format_options
@click.option(
    "--chat-template", default=Config.chat_template, show_default=True, help="auto, chatml-tools or a file."
)
@click.option(
    "--block-size", type=click.IntRange(1, 1024), help="Tokens per block [32, or the analysis' own]."
)
@click.option("--share-tenants", is_flag=True, help="Let requests of different tenants share blocks.")
@click.option(
    "--budget",
    "budgets",
    type=NamedSizes(("device", "host", "disk"), alone="disk"),
    default=Config.budgets,
    metavar="SIZE|TIER=SIZE,...",
    help="Bytes that the shards' files and index may take, such as 2GiB, or what each tier may hold of them, "
    "such as host=1GiB,disk=8GiB [no limit].",
)
@click.option(
    "--tenant-budget",
    "tenant_budgets",
    type=NamedSizes(alone=""),
    default=Config.tenant_budgets,
    metavar="SIZE|TENANT=SIZE,...",
    help="Bytes of shards that each tenant, or one of them, may take [no limit].",
)
@click.option(
    "--min-requests",
    type=click.IntRange(1),
    default=Config.min_requests,
    show_default=True,
    help="Leave out blocks that fewer requests would use.",
)
@click.option(
    "--codec",
    type=click.Choice([AUTO, *CODECS.names()]),
    default=Config.codec,
    show_default=True,
    help="How blocks are stored; auto measures what each of them needs.",
)
@click.option(
    "--max-kl",
    type=Positive(),
    metavar="NATS",
    help="Store nothing and exit 1 if continuations held back lose more than this per token on average, or a "
    "greedy tool call changes [0.0005 with --codec auto and k3v2, else no gate].",
)
@click.option(
    "--protect",
    metavar="ROLES",
    help="Blocks that stay in 16 bits: system, tools, user, assistant, tool, with commas between, or none "
    "[none with --codec auto, which measures them; else system,tools where the codec loses anything].",
)
@click.option(
    "--device",
    default=Config.device,
    show_default=True,
    help="auto, cpu, cuda or cuda:N; several, such as cuda:0,cuda:1, compute files of their own.",
)
@click.option("--dtype", default=Config.dtype, show_default=True, help="auto, float32, bfloat16 or float16.")
@click.option(
    "--prefill-rate",
    type=Positive(),
    metavar="TOKENS",
    help="Prompt tokens a second that the serving machine computes [measured on this one].",
)
@click.option(
    "--tier-speed",
    "tier_speeds",
    type=NamedSizes(("host", "disk"), least=1),
    default=Config.tier_speeds,
    metavar="TIER=BYTES,...",
    help="Bytes a second that loads reach there, such as host=20GiB,disk=2GiB [measured].",
)
@click.option(
    "--signing-key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=kept_secret,
    help="Key file: sign the shards, so that `serve --signing-key` takes them.",
)
@click.option(
    "-o",
    "plan_out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.duckdb",
    help="Also write the plan as table prewarm_plan of a DuckDB file; an analysis keeps its tables.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan and compute nothing.")
@report_option
@click.option(
    "--show-values", is_flag=True, help="Print in the report what only one session sent, not masked."
)
@output_format("terminal", "json")
def command(**options: Any) -> None:
    """Compute hot prefixes of a log once and store their KV blocks as shards.

    Interrupted runs resume. Blocks that the folder already holds are kept.
    """
    config = Config(**options)
    report = run(config)
    RENDERERS.load(config.output_format)(report)
    gate = report.data.get("gate")
    click.get_current_context().exit(0 if gate is None or gate["holds"] else 1)


def run(config: Config) -> "Report":
    """Plan, and unless it is a dry run, compute. Nothing is stored where the gate does not hold."""
    if bool(config.logs) == (config.analysis is not None):
        raise KvtoolError("name a log or an analysis", "--logs FILE, or --from FILE.duckdb")
    if config.out is None and not config.dry_run:
        raise KvtoolError("name the folder for the shards with --out", "or see the plan with --dry-run")
    from kvtool.engine.extra import require_engine

    require_engine("prewarm")
    from kvtool.analysis.learned import learn
    from kvtool.analysis.plan import PlanConfig, behind_public
    from kvtool.analysis.plan_table import save_plan
    from kvtool.engine.allocation import GateFailed
    from kvtool.engine.compute.load import load_model
    from kvtool.engine.precision import PrecisePlan, Precision, log_again
    from kvtool.engine.prewarm import PrewarmConfig, plan_hashes, prewarm
    from kvtool.engine.prewarm_page import stored_page
    from kvtool.engine.prewarm_report import gate_report, plan_json, plan_report, run_json, run_report
    from kvtool.engine.speeds import measure_speeds
    from kvtool.engine.storage.identity import Identity
    from kvtool.engine.storage.outlook import learn_outlook, write_outlook
    from kvtool.engine.storage.reuse import write_reuse
    from kvtool.engine.storage.signature import load_key
    from kvtool.engine.worth import Prices
    from kvtool.files import check_targets
    from kvtool.lint.redact import shape
    from kvtool.logs.sources import expand
    from kvtool.progress import counted
    from kvtool.renderers.html import write_page

    inputs = expand(config.logs) if config.analysis is None else [config.analysis]
    check_targets(inputs, config.report)
    key = None if config.signing_key is None else load_key(config.signing_key)
    notes: list[str] = []
    device, *more = config.device.split(",")
    model = load_model(
        config.model, device, config.dtype, chat_template=config.chat_template, warn=notes.append
    )
    others = [
        load_model(config.model, name, model.dtype_name, chat_template=config.chat_template) for name in more
    ]
    workload = load_workload(config, model, notes)
    if not workload.ready_made and (largest := int(workload.words.max(initial=0))) >= model.config.vocab:
        raise KvtoolError(
            f"the log holds token id {largest:,}, {model.name} has {model.config.vocab:,} tokens",
            "its ids are another tokenizer's: name the model that the log is of",
        )
    identity = Identity.of_model(model, workload.block_size)
    asked = Precision.asked(
        config.codec,
        config.max_kl,
        config.protect,
        lambda: log_again(config.logs, config.analysis, config.format, config.mapping),
    )
    speeds = measure_speeds(
        model,
        asked.least,
        workload.block_size,
        config.out or Path(),
        config.prefill_rate,
        dict(config.tier_speeds),
    )
    limits = PlanConfig(dict(config.budgets), config.min_requests, dict(config.tenant_budgets))
    reuse = learn(workload)
    planned = PrecisePlan(asked, Prices(workload, model, speeds, reuse), limits)
    notes += planned.protected()
    if count := behind_public(planned.priced.plan):
        notes.append(
            f"{count:,} blocks of tenants begin like blocks of no tenant, which all share: a server will not "
            "ask for them; name a tenant in every row or in none (--share-tenants)"
        )

    def save() -> None:
        if config.plan_out is not None:
            save_plan(config.plan_out, planned.priced.plan, plan_hashes(planned.priced.plan, identity))

    def told() -> dict[str, Any]:
        """What is planned by now."""
        return {
            "schema": "kvtool.prewarm/1",
            "model": {"name": model.name, "digest": model.fingerprint["digest"], "dtype": model.dtype_name},
            "out": None if config.out is None else str(config.out),
            "block_size": workload.block_size,
            "codec": config.codec,
            "dry_run": config.dry_run,
            "plan": plan_json(planned.priced.plan, identity, model.encoder),
            "load_or_compute": planned.priced.to_json(),
            "notes": notes,
        }

    save()
    if config.dry_run:
        notes += planned.notes()
        report = plan_report(told(), planned.priced)
    else:
        assert config.out is not None
        planned.priced.require_gain(config.codec)
        for note in planned.protected():  # before a long run, which may not be what was meant
            click.echo(f"note: {note}", err=True)
        started = perf_counter()
        size = len(planned.priced.plan) * workload.block_size
        failed = None
        with counted("tokens", size if planned.is_final else None) as done:
            try:
                result = prewarm(
                    planned.priced.plan,
                    model,
                    config.out,
                    PrewarmConfig(key=key, judge_stored=config.max_kl is not None),
                    done,
                    planned.choose,
                    others,
                )
            except GateFailed as error:
                failed = error
            except KeyboardInterrupt:
                click.echo(f"{config.out}: files that are complete stay; the same command goes on", err=True)
                raise
        save()  # with what blocks take now that they are measured
        if failed is not None:
            report = gate_report(told(), failed)
        else:
            if config.codec != AUTO:
                notes += [
                    f"of the plan's blocks {blocks:,} stay {name}, as they were stored before"
                    for name, blocks in result.kept.items()
                    if name not in asked.names
                ]
            outlook = learn_outlook(workload, identity)
            write_reuse(config.out, reuse)
            write_outlook(config.out, outlook)
            learned = {
                "reuse_model": None if reuse is None else len(reuse.hazards),
                "outlook": None if outlook is None else len(outlook.states),
            }
            run = run_json(result, perf_counter() - started)
            report = run_report({**told(), **learned, **run}, planned.priced)
    report.notes[:0] = notes
    if config.report is not None:
        report.page = stored_page(
            planned.priced.plan,
            report.data,
            workload,
            model,
            config.out,
            arguments(config),
            dict(config.budgets).get("disk"),
            protects=bool(asked.protect),
            hide=None if config.show_values else shape,
        )
        write_page(report, config.report)
    return report


def arguments(config: Config) -> list[str]:
    """The command's arguments for a run of the same plan."""
    source = [("--logs", log) for log in config.logs] or [("--from", str(config.analysis))]
    pairs = [*source, *given_options(config)]
    kept = ("model", "block_size", "min_requests", "codec", "max_kl", "protect", "device", "dtype")
    for name in (*kept, "prefill_rate", "signing_key"):
        value = getattr(config, name)
        if value != getattr(Config, name):
            pairs.append((f"--{name.replace('_', '-')}", str(value)))
    for option, sizes in (
        ("--budget", config.budgets),
        ("--tenant-budget", config.tenant_budgets),
        ("--tier-speed", config.tier_speeds),
    ):
        if sizes:
            pairs.append((option, ",".join(f"{tier}={size}" if tier else str(size) for tier, size in sizes)))
    pairs.append(("--out", str(config.out or "shards")))
    return [part for pair in pairs for part in pair if part]


def load_workload(config: Config, model: "Model", notes: list[str]) -> "Workload":
    """The log's blocks as the model would see them; `notes` gets what the log's reader says."""
    from kvtool.analysis.build import build_workload
    from kvtool.analysis.runs import runs_of
    from kvtool.analysis.store import load_analysis, load_document
    from kvtool.blocks import DEFAULT_BLOCK_SIZE
    from kvtool.logs.reader import open_log

    if config.analysis is None:
        log = open_log(config.logs, format=config.format, mapping=config.mapping)
        size = config.block_size or DEFAULT_BLOCK_SIZE
        workload = build_workload(log, model.encoder, size, config.share_tenants)
        notes += [*log.notes, *map(str, log.skipped)]
        return workload
    workload = load_analysis(config.analysis)
    document = load_document(config.analysis)
    if document["source"]["incomplete_prefix"]:
        notes.extend(document["source"]["notes"])
    if not workload.ready_made and workload.encoder_fingerprint != model.encoder.fingerprint:
        tokenizer = document["tokenizer"]
        same = tokenizer["fingerprint"] == model.encoder.tokenizer.fingerprint
        name, ours = (
            ("chat_template", model.encoder.template) if same else ("tokenizer", model.encoder.tokenizer)
        )
        theirs = tokenizer["chat_template" if same else "name"]
        raise KvtoolError(
            f"{config.analysis}: {name}: the analysis was made with '{theirs}', the model has '{ours.name}'",
            f"analyze anew with --tokenizer {config.model}, or prewarm from --logs",
        )
    size = config.block_size or workload.block_size
    if size % workload.block_size:
        raise KvtoolError(
            f"{config.analysis}: block_size: {workload.block_size} does not divide --block-size {size}",
            "analyze anew with that --block-size",
        )
    return runs_of(workload).coarser(size).unfolded()
