"""kvtool lint: what breaks the prefix in logs and in prompt templates, for people and for CI."""

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvtool.errors import KvtoolError
from kvtool.options import Rate, flops_option, price_option

if TYPE_CHECKING:
    from kvtool.lint.run import LintConfig

FORMATS = ["text", "concise", "json", "json-lines", "github", "gitlab", "junit", "sarif", "markdown"]


@dataclass(frozen=True)
class Config:
    """All options of lint; None and () leave the choice to kvtool.toml, then to LintConfig's defaults."""

    paths: tuple[str, ...]
    select: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    format: str | None = None
    block_size: int | None = None
    tokenizer: str | None = None
    chat_template: str | None = None
    fail_on: str | None = None
    min_hit_rate: float | None = None
    max_regression: float | None = None
    baseline: Path | None = None
    write_baseline: Path | None = None
    show_values: bool | None = None
    price: tuple[float, float] | None = None
    model: str | None = None
    flops: float | None = None
    exit_zero: bool = False
    output_format: str = "text"
    output_file: Path | None = None
    fix: bool = False
    unsafe_fixes: bool = False
    diff: bool = False
    explain: str | None = None
    list_rules: bool = False


@click.command(epilog="Example: kvtool lint prompts/ logs.jsonl --ignore KV107 --output-format github")
@click.argument("paths", nargs=-1)
@click.option("--select", multiple=True, metavar="CODES", help="Only these rules, by prefix or name.")
@click.option("--extend-select", multiple=True, metavar="CODES", help="These rules too.")
@click.option("--ignore", multiple=True, metavar="CODES", help="Not these rules.")
@click.option("--exclude", multiple=True, metavar="GLOB", help="Not these files.")
@click.option("--format", metavar="NAME", help="Log format; sniffed by default.")
@click.option("--block-size", type=click.IntRange(min=1), help="Tokens per block (32).")
@click.option("--tokenizer", help="embedded, bytes, a folder, a tokenizer.json or a hub id.")
@click.option("--chat-template", help="auto, chatml-tools or a file.")
@click.option("--fail-on", metavar="WHAT", help="Exit 1 on error, warning (default), info, or a code.")
@click.option("--min-hit-rate", type=Rate(), help="Exit 1 below this token hit rate (0.4 or 40%).")
@click.option(
    "--max-regression",
    type=click.FloatRange(min=0),
    metavar="PP",
    help="Exit 1 where the hit rate fell by more percentage points than this since the baseline.",
)
@click.option(
    "--baseline", type=click.Path(dir_okay=False, path_type=Path), help="Known findings: not reported."
)
@click.option(
    "--write-baseline", type=click.Path(dir_okay=False, path_type=Path), help="Accept all findings of now."
)
@price_option
@click.option(
    "--model", help="Model folder or embedded: what each finding costs in GPU seconds, by its config.json."
)
@flops_option
@click.option("--show-values/--hide-values", default=None, help="Print values as they are, not masked.")
@click.option("--exit-zero", is_flag=True, help="Exit 0 whatever is found.")
@click.option("--output-format", type=click.Choice(FORMATS), default=Config.output_format, show_default=True)
@click.option("--output-file", type=click.Path(dir_okay=False, path_type=Path), help="Instead of stdout.")
@click.option("--fix", is_flag=True, help="Make the safe fixes in the logs, then lint what is left.")
@click.option(
    "--unsafe-fixes", is_flag=True, help="With --fix or --diff: also fixes that change the meaning."
)
@click.option(
    "--diff", is_flag=True, help="Show what --fix would change, change nothing; exit 1 if it would."
)
@click.option("--explain", metavar="CODE", help="What a rule does, why, and what to do instead.")
@click.option("--list-rules", is_flag=True, help="All rules.")
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """Find what breaks the prefix in PATHS: logs, templates (Jinja, Python, YAML, JSON, text), folders."""
    config = Config(**{key: _codes(key, value) for key, value in options.items()})
    if config.list_rules or config.explain:
        from kvtool.lint.explain import explain, list_rules

        click.echo(list_rules() if config.explain is None else explain(config.explain), nl=False)
        return
    if not config.paths:
        raise click.UsageError("name logs, templates or folders")
    ctx.exit(run(config))


def _codes(key: str, value: Any) -> Any:
    """`--select KV1,KV2` is `--select KV1 --select KV2`."""
    if key not in ("select", "extend_select", "ignore"):
        return value
    return tuple(code for one in value for code in one.split(",") if code)


def run(config: Config) -> int:
    """Lint, report, exit code."""
    from kvtool.files import check_targets, write_whole
    from kvtool.lint.baseline import load_baseline, save_baseline
    from kvtool.lint.run import lint, report
    from kvtool.lint.settings import check_codes, check_fail_on, nearest_settings
    from kvtool.progress import working
    from kvtool.renderers import RENDERERS
    from kvtool.report import plural
    from kvtool.tokens import load_encoder

    settings = nearest_settings(Path.cwd())
    for option in ("select", "extend_select", "ignore"):
        check_codes(getattr(config, option), f"--{option.replace('_', '-')}")
    check_fail_on(config.fail_on, "--fail-on")
    check_targets(config.paths, config.output_file, config.write_baseline)
    lint_config = _merged(config, settings)
    path = config.baseline or (Path(settings["baseline"]) if "baseline" in settings else None)
    if lint_config.max_regression is not None and path is None and config.write_baseline is None:
        raise KvtoolError(
            "--max-regression: no baseline to compare with",
            "write one with --write-baseline FILE, then name it with --baseline FILE",
        )
    baseline = load_baseline(path) if path is not None and config.write_baseline is None else None
    if lint_config.max_regression is not None and baseline is not None and baseline.hit_rate is None:
        raise KvtoolError(
            f"--max-regression: {path} holds no hit rate: it was written without a log",
            "write it again with --write-baseline and the logs",
        )
    if config.unsafe_fixes and not (config.fix or config.diff):
        raise KvtoolError(
            "--unsafe-fixes alone fixes nothing", "add --fix, or --diff to see what it would do"
        )
    notes: list[str] = []
    tokenizer = config.tokenizer or settings.get("tokenizer")
    template = config.chat_template or settings.get("chat_template", "auto")
    if config.fix or config.diff:
        from kvtool.lint.fix import fix_logs

        changed, diff = fix_logs(
            config.paths,
            lint_config,
            lambda: load_encoder(tokenizer, template),
            config.unsafe_fixes,
            write=not config.diff,
        )
        if config.diff:
            click.echo("\n".join(diff))
            return 1 if changed and not config.exit_zero else 0
        notes.append(f"{plural(changed, 'row')} of logs fixed")
    with working("reading, finding and pricing"):
        result = lint(
            config.paths, lint_config, lambda: load_encoder(tokenizer, template, notes.append), baseline
        )
    result.notes[:0] = notes
    if config.write_baseline is not None:
        save_baseline(config.write_baseline, result.findings, result.hit_rate)
    render = RENDERERS.load(config.output_format)
    if config.output_file is None:
        render(report(result))
    else:
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            render(report(result))
        write_whole(config.output_file, text.getvalue())
    return 1 if result.failures and not config.exit_zero and config.write_baseline is None else 0


def _merged(config: Config, settings: dict[str, Any]) -> "LintConfig":
    """Options given win over the settings file, which wins over the defaults."""
    from kvtool.lint.run import LintConfig

    values: dict[str, Any] = {}
    for name in LintConfig.__dataclass_fields__:
        given = getattr(config, name)
        if given is not None and given != ():
            values[name] = given
        elif name in settings:
            values[name] = tuple(settings[name]) if isinstance(settings[name], list) else settings[name]
    if config.ignore and "ignore" in settings:
        values["ignore"] = (*settings["ignore"], *config.ignore)
    return LintConfig(**values)
