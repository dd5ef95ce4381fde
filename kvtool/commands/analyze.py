"""kvtool analyze: what a log's prompts share, what breaks it, and what that costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvtool.logs.formats import FORMATS
from kvtool.options import Assignment, Rate, as_dict
from kvtool.renderers import RENDERERS

if TYPE_CHECKING:
    from kvtool.analysis.analyze import Analysis
    from kvtool.report import Finding, Report

SEVERITIES = {"error": 2, "warning": 1, "info": 0}


@dataclass(frozen=True)
class Config:
    """All options of analyze. min_hit_rate: 0..1; session_gap: seconds; fail_on: severity or code prefix."""

    logs: tuple[str, ...]
    format: str | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False
    block_sizes: tuple[int, ...] = ()
    tokenizer: str | None = None
    chat_template: str = "auto"
    where: str | None = None
    session_gap: float | None = None
    share_tenants: bool = False
    output: Path | None = None
    output_format: str = "terminal"
    min_hit_rate: float | None = None
    fail_on: str | None = None


@click.command(
    epilog="Example: kvtool analyze 'logs/*.jsonl.gz' --where \"model = 'qwen3'\" -o analysis.duckdb"
)
@click.argument("logs", nargs=-1, required=True)
@click.option(
    "--format", metavar="NAME", help=f"Log format; sniffed by default ({', '.join(FORMATS.names())})."
)
@click.option(
    "--map",
    "mapping",
    type=Assignment(),
    multiple=True,
    callback=as_dict,
    help="Where an unknown format keeps a field.",
)
@click.option("--strict", is_flag=True, help="Stop at the first bad row instead of counting it.")
@click.option(
    "--block-size",
    "block_sizes",
    type=click.IntRange(min=1),
    multiple=True,
    help="Tokens per block (32, or the trace's own); repeat to compare.",
)
@click.option("--tokenizer", help="embedded, bytes, a folder, a tokenizer.json or a hub id.")
@click.option(
    "--chat-template", default=Config.chat_template, show_default=True, help="auto, chatml-tools or a file."
)
@click.option("--where", metavar="SQL", help="Keep requests for which this DuckDB expression is true.")
@click.option(
    "--session-gap", type=click.FloatRange(min=0), metavar="SECONDS", help="A longer pause ends a session."
)
@click.option("--share-tenants", is_flag=True, help="Let requests of different tenants share blocks.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the analysis as FILE.duckdb.",
)
@click.option(
    "--output-format",
    type=click.Choice(["terminal", "json", "markdown"]),
    default=Config.output_format,
    show_default=True,
)
@click.option("--min-hit-rate", type=Rate(), help="Exit 1 below this token hit rate (0.4 or 40%).")
@click.option(
    "--fail-on", metavar="WHAT", help="Exit 1 on findings: error, warning, or a code such as KV101."
)
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """Hit rate of LOGS (files, folders, globs, '-'), hot prefixes, and what breaks them."""
    config = Config(**options)
    report, passed = run(config)
    RENDERERS.load(config.output_format)(report)
    ctx.exit(0 if passed else 1)


def run(config: Config) -> tuple["Report", bool]:
    """The report, and whether every gate is met."""
    from kvtool.analysis.analyze import AnalyzeConfig, analyze
    from kvtool.analysis.describe import describe, present
    from kvtool.analysis.store import save_analysis
    from kvtool.logs.reader import open_log
    from kvtool.progress import counted
    from kvtool.tokens import load_encoder

    log = open_log(config.logs, format=config.format, mapping=config.mapping, strict=config.strict)
    notes: list[str] = []
    with counted("requests read") as advance:
        analysis = analyze(
            log,
            lambda: load_encoder(config.tokenizer, config.chat_template, notes.append),
            AnalyzeConfig(config.block_sizes, config.share_tenants, config.where, config.session_gap),
            advance,
        )
    analysis.notes[:0] = notes
    findings, normalized = lint(analysis, config.share_tenants)
    document = describe(log, analysis, findings, normalized)
    if config.output is not None:
        save_analysis(config.output, analysis.workload, analysis.rates, analysis.usage, findings, document)
    failed = config.fail_on is not None and any(stops(finding, config.fail_on) for finding in findings)
    enough = config.min_hit_rate is None or analysis.rates.tokens >= config.min_hit_rate
    return present(document, findings), enough and not failed


def lint(analysis: "Analysis", share_tenants: bool) -> tuple[list["Finding"], float]:
    """Findings, and the hit rate of the same requests with all safe fixes."""
    if analysis.encoder is None or not analysis.held:
        return [], analysis.rates.tokens
    from kvtool.analysis.build import build_workload
    from kvtool.analysis.hit_rates import hit_rates
    from kvtool.lint.check import edits_of, examine, normalized_requests
    from kvtool.prompts.normalizer import Normalizer

    block_size = analysis.workload.block_size
    priced = examine(analysis.held, analysis.encoder, block_size)
    findings = [one.finding for one in priced]
    edits = edits_of(priced)
    if not edits:
        return findings, analysis.rates.tokens
    fixed = normalized_requests(analysis.held, Normalizer(edits))
    workload = build_workload(fixed, analysis.encoder, block_size, share_tenants)
    return findings, hit_rates(workload).tokens


def stops(finding: "Finding", fail_on: str) -> bool:
    """Whether --fail-on names this finding: by its severity or a worse one, or by its code."""
    if fail_on in SEVERITIES:
        return SEVERITIES[finding.severity] >= SEVERITIES[fail_on]
    return finding.code.startswith(fail_on)
