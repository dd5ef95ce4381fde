"""kvtool demo: the whole story on a bundled log, command by command, with figures measured in this run."""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvtool.errors import KvtoolError
from kvtool.options import output_format
from kvtool.renderers import RENDERERS

if TYPE_CHECKING:
    from kvtool.engine.side_by_side import Pair
    from kvtool.report import Report
    from kvtool.requests import Request

SAMPLE = "airline-chat.jsonl"


@dataclass(frozen=True)
class Config:
    """All options of demo. requests: prompts sent, each cold and warm; max_tokens: of an answer."""

    log: Path | None = None
    requests: int = 3
    max_tokens: int = 16
    min_requests: int = 8
    keep: Path | None = None
    output_format: str = "terminal"


@click.command(epilog="Example: kvtool demo --keep demo-files")
@click.option(
    "--log",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Another chat log than the bundled one.",
)
@click.option(
    "--requests",
    type=click.IntRange(1),
    default=Config.requests,
    show_default=True,
    help="Prompts to send, one per session, each cold and warm.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    default=Config.max_tokens,
    show_default=True,
    help="Tokens of an answer.",
)
@click.option(
    "--min-requests",
    type=click.IntRange(1),
    default=Config.min_requests,
    show_default=True,
    help="Prewarm blocks that at least so many requests use.",
)
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the files of the run in a new folder.",
)
@output_format("terminal", "json", "markdown")
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """The whole story on a bundled log with the embedded model: a few minutes on two cores."""
    config = Config(**options)
    report = run(config)
    RENDERERS.load(config.output_format)(report)
    ctx.exit(0 if report.data["answers"] == "identical" else 1)


def run(config: Config) -> "Report":
    """Analyze, normalize, prewarm, serve, replay; the report compares before and after."""
    from kvtool.engine.extra import require_engine

    require_engine("demo")
    from kvtool.commands import analyze, normalize, prewarm
    from kvtool.engine.side_by_side import compare, server

    log = config.log or bundled(SAMPLE)
    with working_folder(config.keep) as folder:
        normalized = folder / f"normalized{log.suffix}"
        rules, shards = folder / "normalizer.json", folder / "shards"
        say(1, f"kvtool analyze {log.name}")
        analysis = analyze.run(analyze.Config(logs=(str(log),)))[0].data
        rate = analysis["hit_rate"]
        codes = [finding["code"] for finding in analysis["findings"]]
        tell(f"hit rate {rate['tokens']:.1%} of {analysis['tokens']['prompt']:,} prompt tokens")
        for finding in analysis["findings"]:
            tell(f"{finding['code']} {finding['message']}: {finding['lost_tokens']:,} tokens lost")
        say(2, f"kvtool normalize {log.name} -o {normalized.name} --rules-out {rules.name}")
        fixed = normalize.run(normalize.Config((str(log),), normalized, rules)).data["hit_rate"]
        tell(f"hit rate {fixed['before']:.1%} -> {fixed['after']:.1%}")
        least = config.min_requests
        say(3, f"kvtool prewarm --logs {normalized.name} --min-requests {least} --out {shards.name}")
        warmed = prewarm.run(prewarm.Config((str(normalized),), out=shards, min_requests=least)).data
        tell(f"{warmed['blocks']:,} blocks, {warmed['tokens_computed']:,} tokens computed")
        say(4, f"kvtool serve --shards {shards.name}")
        pairs = []
        with server(["--shards", str(shards)], folder / "serve.log") as url:
            say(5, f"{config.requests} prompts of {normalized.name}, each cold (salted), then warm")
            for pair in compare(url, "embedded", openings(normalized, config.requests), config.max_tokens):
                cached, prompt = pair.warm.cached or 0, pair.warm.prompt
                tell(f"{pair.warm.id}: {cached:,} of {prompt:,} tokens cached")
                tell(f"first token {pair.cold.ttft:.2f} s -> {pair.warm.ttft:.3f} s")
                pairs.append(pair)
    return summarize(log, codes, fixed, warmed, pairs)


def summarize(
    log: Path, codes: list[str], hit_rate: dict[str, float], warmed: dict[str, Any], pairs: list["Pair"]
) -> "Report":
    """One table, all of it from this run."""
    from kvtool.renderers.terminal import show, show_bytes
    from kvtool.report import Column, Report, Table

    cold = statistics.median(pair.cold.ttft or 0.0 for pair in pairs)
    warm = statistics.median(pair.warm.ttft or 0.0 for pair in pairs)
    prompt = sum(pair.warm.prompt for pair in pairs)
    cached = sum(pair.warm.cached or 0 for pair in pairs)
    computed, unshared = warmed["tokens_computed"], warmed["plan"]["tokens_unshared"]
    answers = "identical" if all(pair.identical for pair in pairs) else "differ"
    seconds = Column("", "seconds")
    rows: list[list[str | int | float | None]] = [
        ["hit rate of prompt tokens (log)", f"{hit_rate['before']:.1%}", f"{hit_rate['after']:.1%}", None],
        ["blocks prewarmed", "0", f"{warmed['blocks']:,}", None],
        ["bytes of shards", "0 B", show_bytes(warmed["bytes"]), None],
        ["tokens computed for them", f"{unshared:,}", f"{computed:,}", unshared / max(computed, 1)],
        ["prompt tokens from the cache", "0", f"{cached:,} of {prompt:,}", None],
        ["time to first token", show(cold, seconds), show(warm, seconds), cold / warm],
    ]
    data = {
        "schema": "kvtool.demo/1",
        "log": log.name,
        "findings": codes,
        "hit_rate": hit_rate,
        "prewarm": {
            "blocks": warmed["blocks"],
            "bytes": warmed["bytes"],
            "tokens_computed": computed,
            "tokens_unshared": unshared,
        },
        "ttft": {"cold_seconds": cold, "warm_seconds": warm, "ratio": cold / warm},
        "requests": [
            {
                "id": pair.warm.id,
                "prompt_tokens": pair.warm.prompt,
                "cached_tokens": pair.warm.cached,
                "cold_seconds": pair.cold.ttft,
                "warm_seconds": pair.warm.ttft,
                "identical": pair.identical,
            }
            for pair in pairs
        ],
        "answers": answers,
    }
    columns = [
        Column("measured in this run"),
        Column("before", "count"),
        Column("after", "count"),
        Column("gain", "ratio"),
    ]
    return Report(data, tables=[Table("", columns, rows)], closing=[f"answers: {answers}"])


def bundled(name: str) -> Path:
    """A file of samples/: inside the installed package, or beside it in a clone."""
    import kvtool

    package = Path(kvtool.__file__).parent
    for folder in (package / "samples", package.parent / "samples"):
        if (folder / name).is_file():
            return folder / name
    raise KvtoolError(f"the sample log {name} is not installed", "name a chat log with --log")


@contextmanager
def working_folder(keep: Path | None) -> Iterator[Path]:
    """`keep`, which must not exist yet, or a folder that is gone afterwards."""
    import tempfile

    if keep is None:
        with tempfile.TemporaryDirectory(prefix="kvtool-demo-") as folder:
            yield Path(folder)
        return
    if keep.exists():
        raise KvtoolError(f"--keep {keep}: it exists already", "name a new folder")
    keep.mkdir(parents=True)
    yield keep


def openings(log: Path, count: int) -> list["Request"]:
    """The first request of each of the first `count` sessions that have messages."""
    from kvtool.logs.reader import open_log

    found: dict[str | None, Request] = {}
    for request in open_log([str(log)]):
        if request.messages and len(found) < count:
            found.setdefault(request.session, request)
    if not found:
        raise KvtoolError(f"{log}: no request with messages", "the demo sends chat messages")
    return list(found.values())


def say(step: int, text: str) -> None:
    """A step of the story, on stderr."""
    click.secho(f"[{step}/5] {text}", err=True, bold=True)


def tell(text: str) -> None:
    """What a step found, on stderr."""
    click.echo(f"      {text}", err=True)
