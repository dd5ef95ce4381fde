"""kvtool normalize: write the log back with its prefix-breaking causes fixed, and the fixes as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvtool.options import format_options, output_format, prompt_options, strict_option

if TYPE_CHECKING:
    from kvtool.report import Report

DEFAULT_BLOCK_SIZE = 32


@dataclass(frozen=True)
class Config:
    """All options of normalize. unsafe: also fixes that change what the model is told."""

    logs: tuple[str, ...]
    output: Path
    rules_out: Path | None = None
    unsafe: bool = False
    format: str | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False
    block_size: int = DEFAULT_BLOCK_SIZE
    tokenizer: str | None = None
    chat_template: str = "auto"
    output_format: str = "terminal"


@click.command(epilog="Example: kvtool normalize logs.jsonl -o fixed.jsonl --rules-out normalizer.json")
@click.argument("logs", nargs=-1, required=True)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="Where the log is written to."
)
@click.option(
    "--rules-out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the fixes as normalizer.json, for serve --normalizer.",
)
@click.option("--unsafe", is_flag=True, help="Also fixes that change what the model is told.")
@format_options
@strict_option
@click.option(
    "--block-size",
    type=click.IntRange(min=1),
    default=Config.block_size,
    show_default=True,
    help="Tokens per block.",
)
@prompt_options
@output_format("terminal", "json")
def command(**options: Any) -> None:
    """Fix what breaks the prefix in LOGS, keep their format, and measure what that gains."""
    from kvtool.renderers import RENDERERS

    config = Config(**options)
    RENDERERS.load(config.output_format)(run(config))


def run(config: Config) -> "Report":
    """Writes the outputs; the report says what was done."""
    from kvtool.lint.normalize import normalize
    from kvtool.logs.reader import open_log
    from kvtool.progress import counted
    from kvtool.tokens import load_encoder

    log = open_log(config.logs, format=config.format, mapping=config.mapping, strict=config.strict)
    notes: list[str] = []
    with counted("rows read") as advance:
        return normalize(
            log,
            lambda: load_encoder(config.tokenizer, config.chat_template, notes.append),
            config.output,
            config.rules_out,
            config.block_size,
            config.unsafe,
            lambda path: open_log([str(path)], format=config.format, mapping=config.mapping),
            advance,
            notes,
        )
