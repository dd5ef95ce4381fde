"""kvtool analyze: what a log's prompts share, what breaks it, and what that costs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvtool.options import (
    Rate,
    flops_option,
    format_options,
    given_options,
    output_format,
    price_option,
    prompt_options,
    report_option,
    request_options,
    strict_option,
)
from kvtool.renderers import RENDERERS

if TYPE_CHECKING:
    from kvtool.analysis.analyze import Analysis
    from kvtool.analysis.memory import ModelShape
    from kvtool.lint.check import Priced
    from kvtool.page import Page
    from kvtool.report import Report


@dataclass(frozen=True)
class Config:
    """All options of analyze. min_hit_rate: 0..1; session_gap: seconds; fail_on: severity, name or code."""

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
    price: tuple[float, float] | None = None
    flops: float | None = None
    report: Path | None = None
    model: str | None = None
    show_values: bool = False
    details: bool = False


@click.command(
    epilog="Example: kvtool analyze 'logs/*.jsonl.gz' --where \"model = 'qwen3'\" -o analysis.duckdb"
)
@click.argument("logs", nargs=-1, required=True)
@format_options
@strict_option
@click.option(
    "--block-size",
    "block_sizes",
    type=click.IntRange(min=1),
    multiple=True,
    help="Tokens per block (32, or the trace's own); repeat to compare.",
)
@prompt_options
@request_options
@price_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the analysis as FILE.duckdb.",
)
@report_option
@click.option("--model", help="Model folder or embedded: the report's memory sizes, GPU seconds.")
@flops_option
@click.option("--show-values", is_flag=True, help="Print values in the report as they are, not masked.")
@output_format("terminal", "json", "markdown")
@click.option("--details", is_flag=True, help="Also block sizes, capacities and hot prefixes, all findings.")
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
    from kvtool.analysis.memory import read_shape
    from kvtool.analysis.store import save_analysis
    from kvtool.files import check_targets
    from kvtool.lint.check import charged
    from kvtool.lint.price import SUSTAINED, Rates
    from kvtool.lint.run import stops
    from kvtool.lint.settings import check_fail_on
    from kvtool.logs.reader import open_log
    from kvtool.logs.sources import expand
    from kvtool.progress import counted, working
    from kvtool.renderers.html import write_page
    from kvtool.report import plural
    from kvtool.tokens import load_encoder

    check_fail_on(config.fail_on, "--fail-on")
    check_targets(expand(config.logs), config.output, config.report)
    shape = read_shape(config.model) if config.model else None
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
    with working("finding and pricing what breaks prefixes"):
        priced, normalized = lint(analysis, config.share_tenants)
    rates = Rates(config.price, shape.prefill() if shape else None, config.flops or SUSTAINED)
    findings = charged(priced, rates)
    document = describe(log, analysis, findings, normalized)
    if config.output is not None:
        save_analysis(config.output, analysis.runs, analysis.rates, analysis.counts, findings, document)
    failed = []
    stopping = sum(config.fail_on is not None and stops(finding, config.fail_on) for finding in findings)
    if stopping:
        failed.append(f"failed: {plural(stopping, 'finding')} (--fail-on {config.fail_on})")
    if config.min_hit_rate is not None and analysis.rates.tokens < config.min_hit_rate:
        failed.append(f"failed: hit rate {analysis.rates.tokens:.1%} is below {config.min_hit_rate:.1%}")
    report = present(document, findings)
    report.notes = [*report.notes, *failed]
    report.all_details = config.details
    if config.report is not None:
        with working("replaying for the report"):
            report.page = page(config, analysis, document, priced, shape)
        write_page(report, config.report)
    return report, not failed


def page(
    config: Config,
    analysis: "Analysis",
    document: dict[str, Any],
    priced: list["Priced"],
    shape: "ModelShape | None",
) -> "Page":
    """The pictures of an analysis; values are masked as lint masks them, unless they are asked for."""
    from kvtool.analysis.analysis_page import analysis_page
    from kvtool.lint.exhibit import exhibits
    from kvtool.lint.redact import shape as masked

    return analysis_page(
        analysis,
        document,
        exhibits(priced, config.show_values),
        config.logs,
        given_options(config),
        shape,
        config.price,
        None if config.show_values else masked,
    )


def lint(analysis: "Analysis", share_tenants: bool) -> tuple[list["Priced"], float]:
    """Findings, and the hit rate of the same requests with all safe fixes: of those that lint has read, the
    others count as they are."""
    if analysis.encoder is None or not analysis.held:
        return [], analysis.rates.tokens
    from kvtool.analysis.build import build_runs
    from kvtool.analysis.hit_rates import hit_rates
    from kvtool.lint.check import edits_of, examine, normalized_requests
    from kvtool.prompts.normalizer import Normalizer

    block_size = analysis.runs.block_size
    priced = examine(analysis.held, analysis.encoder, block_size)
    edits = edits_of(priced)
    if not edits:
        return priced, analysis.rates.tokens
    fixed = normalized_requests(analysis.held, Normalizer(edits))
    after = hit_rates(build_runs(fixed, analysis.encoder, block_size, share_tenants))
    if len(analysis.held) == analysis.runs.requests:
        return priced, after.tokens
    before = hit_rates(build_runs(analysis.held, analysis.encoder, block_size, share_tenants))
    gained = (after.tokens - before.tokens) * before.prompt_tokens
    return priced, analysis.rates.tokens + gained / analysis.rates.prompt_tokens
