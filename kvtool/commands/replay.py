"""kvtool replay: send a log to a server and see what its cache does with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from kvtool.errors import KvtoolError
from kvtool.options import format_options, output_format
from kvtool.renderers import RENDERERS

if TYPE_CHECKING:
    from kvtool.engine.replay import Sent, Server
    from kvtool.report import Report
    from kvtool.requests import Request

SHOWN = 40
"""Requests in the terminal's table; JSON has all."""


@dataclass(frozen=True)
class Config:
    """All options of replay. speed: of the recorded time; fast: send as fast as in_flight allows."""

    logs: tuple[str, ...]
    url: str = "http://127.0.0.1:8000"
    model: str | None = None
    api_key: str | None = None
    speed: float = 1.0
    fast: bool = False
    limit: int | None = None
    in_flight: int = 64
    max_tokens: int = 16
    reset: bool = False
    format: str | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)
    tokenizer: str | None = None
    chat_template: str = "auto"
    output_format: str = "terminal"


@click.command(epilog="Example: kvtool replay logs.jsonl --url http://127.0.0.1:8000 --speed 10 --limit 100")
@click.argument("logs", nargs=-1, required=True)
@click.option("--url", default=Config.url, show_default=True, help="The server, with or without /v1.")
@click.option("--model", help="Name to ask for [the server's only one].")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Bearer key; also read from OPENAI_API_KEY.")
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    default=Config.speed,
    show_default=True,
    help="2 halves the recorded pauses.",
)
@click.option("--fast", is_flag=True, help="Ignore recorded times; send as --in-flight allows.")
@click.option("--limit", type=click.IntRange(1), help="Send only the first so many requests.")
@click.option(
    "--in-flight",
    type=click.IntRange(1),
    default=Config.in_flight,
    show_default=True,
    help="Most requests at once.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    default=Config.max_tokens,
    show_default=True,
    help="Tokens of an answer.",
)
@click.option("--reset", is_flag=True, help="Empty our own server's cache first (not its shards).")
@format_options
@click.option("--tokenizer", help="The server's, for the prediction [embedded].")
@click.option(
    "--chat-template",
    default=Config.chat_template,
    show_default=True,
    help="The server's, for the prediction.",
)
@output_format("terminal", "json", "markdown")
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """Send LOGS to an OpenAI-compatible server; time to first token and cached tokens of each request."""
    config = Config(**options)
    from kvtool.engine.extra import require

    require("replay", "httpx")
    report = run(config)
    RENDERERS.load(config.output_format)(report)
    ctx.exit(1 if report.data["failed"] else 0)


def run(config: Config) -> "Report":
    """Send, measure and, for our own server, predict."""
    from kvtool.engine.replay import Server, Target, replay
    from kvtool.progress import counted

    requests, notes = read(config)
    server = Server(config.url, config.api_key)
    try:
        model = config.model or only(server.models())
        if config.reset:
            server.reset()
        stats = server.stats()
        stored = stored_blocks(server, stats)
        policy = server.policy() if stats is not None else None
        target = Target(
            config.url,
            model,
            config.api_key,
            None if config.fast else config.speed,
            config.in_flight,
            config.max_tokens,
        )
        with counted("requests answered", len(requests)) as advance:
            sent = replay(requests, target, advance)
    finally:
        server.close()
    predicted = None
    if stats is not None:
        predicted, why = prediction(config, requests, sent, stats, policy, stored)
        notes += [why] if why else []
        if predicted and any(stats["tiers"][tier]["used"] for tier in stats["tiers"] if tier != "shards"):
            notes.append("the cache was not empty: the prediction takes its blocks to stay (see --reset)")
    return describe(config, model, sent, predicted, notes)


def read(config: Config) -> tuple[list["Request"], list[str]]:
    """The requests in arrival order, and what must be said about those that are left out."""
    from kvtool.engine.replay import sendable
    from kvtool.logs.reader import open_log
    from kvtool.report import plural

    log = open_log(config.logs, format=config.format, mapping=config.mapping)
    found: list[Request] = []
    refused: dict[str, int] = {}
    for request in log:
        why = sendable(request)
        if why is None:
            found.append(request)
        else:
            refused[why] = refused.get(why, 0) + 1
    notes = [f"{plural(count, 'request')} not sent: {why}" for why, count in refused.items()]
    notes += map(str, log.skipped)
    if not found:
        raise KvtoolError(f"{log.files[0]}: nothing to send", "; ".join(notes))
    if all(request.arrival is not None for request in found):
        found.sort(key=lambda request: request.arrival or 0)
    return found[: config.limit], notes


def only(models: Sequence[str]) -> str:
    """The server's model, if it has one."""
    if len(models) != 1:
        raise KvtoolError(f"the server has {len(models)} models: {', '.join(models)}", "choose with --model")
    return models[0]


def stored_blocks(server: "Server", stats: Mapping[str, Any] | None) -> set[str] | None:
    """Hashes that our own server has in any tier now; None where it will not say."""
    if stats is None:
        return None
    found: set[str] = set()
    for tier in stats["tiers"]:
        hashes = server.blocks(tier)
        if hashes is None:
            return None
        found.update(hashes)
    return found


def prediction(
    config: Config,
    requests: Sequence["Request"],
    sent: Sequence["Sent"],
    stats: Mapping[str, Any],
    policy: Mapping[str, Any] | None,
    stored: set[str] | None,
) -> tuple[list[int] | None, str]:
    """(cached tokens of each answered request, "") as the simulator sees it, or (None, why not)."""
    from kvtool.engine.predict import Answered, policy_of, predict
    from kvtool.engine.replay import session_of
    from kvtool.tokens import load_encoder

    if stored is None or policy is None:
        return None, "no prediction: the server lists its blocks only with its admin key (--api-key)"
    encoder = load_encoder(config.tokenizer, config.chat_template)
    if encoder.fingerprint != stats["encoder"]:
        return (
            None,
            "no prediction: the server has another tokenizer or template (--tokenizer, --chat-template)",
        )
    answered = [(request, result) for request, result in zip(requests, sent, strict=True) if not result.error]
    prompts = encoder.encode([request for request, _ in answered])
    work = []
    for (request, result), prompt in zip(answered, prompts, strict=True):
        if len(prompt) != result.prompt:
            counts = f"{len(prompt)} tokens here and {result.prompt} at the server"
            return None, f"no prediction: {result.place} has {counts}, which may be normalizing"
        work.append(Answered(prompt, result.completion, result.at, session_of(request)))
    return predict(work, stats, policy_of(policy), stored), ""


def describe(
    config: Config, model: str, sent: Sequence["Sent"], predicted: list[int] | None, notes: list[str]
) -> "Report":
    """Rows, percentiles, and measured beside predicted."""
    from kvtool.report import Column, Report, Table, plural

    good = [result for result in sent if result.error is None]
    prompt = sum(result.prompt for result in good)
    cached = sum(result.cached or 0 for result in good)
    measured = cached / prompt if prompt else 0.0
    expected = sum(predicted) / prompt if predicted is not None and prompt else None
    failed: dict[str, list[Sent]] = {}
    for result in sent:
        if result.error:
            failed.setdefault(result.error, []).append(result)
    failures = [(reason, len(some), some[0].place) for reason, some in failed.items()]
    ttft = percentiles([result.ttft for result in good if result.ttft is not None])
    total = percentiles([result.total for result in good])
    data = {
        "schema": "kvtool.replay/1",
        "url": config.url,
        "model": model,
        "requests": [
            {
                "id": result.id,
                "source": result.place,
                "prompt_tokens": result.prompt,
                "cached_tokens": result.cached,
                "completion_tokens": result.completion,
                "ttft_seconds": result.ttft,
                "total_seconds": result.total,
                "error": result.error,
            }
            for result in sent
        ],
        "ttft_seconds": ttft,
        "total_seconds": total,
        "tokens": {"prompt": prompt, "cached": cached},
        "hit_rate": {"measured": measured, "predicted": expected},
        "failed": [
            {"reason": reason, "requests": count, "first": place} for reason, count, place in failures
        ],
        "notes": notes,
    }
    if good and all(result.cached is None for result in good):
        notes.append("the server does not report cached tokens")
    rows: list[list[str | int | float | None]] = [
        [r.place, r.prompt, r.cached, r.completion, r.ttft, r.total] for r in good[:SHOWN]
    ]
    if len(good) > SHOWN:
        notes.append(f"the first {SHOWN} of {len(good)} requests are shown; --output-format json has all")
    columns = [
        Column("request"),
        Column("prompt", "count"),
        Column("cached", "count"),
        Column("answer", "count"),
        Column("first token", "seconds"),
        Column("total", "seconds"),
    ]
    names = ["p50", "p90", "p99", "max", "mean"]
    times = [Column(""), *(Column(name, "seconds") for name in names)]
    quantiles: list[list[str | int | float | None]] = [
        [title, *(values[name] for name in names)]
        for title, values in (("first token", ttft), ("total", total))
        if values
    ]
    headline = [
        f"{len(good):,} of {plural(len(sent), 'request')} answered by {model} at {config.url}",
        f"{cached:,} of {prompt:,} prompt tokens cached: hit rate {measured:.1%}"
        + ("" if expected is None else f" (predicted {expected:.1%})"),
    ]
    headline += [
        f"failed: {plural(count, 'request')}, first {place}: {reason}" for reason, count, place in failures
    ]
    return Report(data, headline, [Table("", columns, rows), Table("", times, quantiles)], notes=notes)


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """p50, p90, p99 (the smallest value that at least so many do not exceed), max and mean, in seconds."""
    if not values:
        return None
    ordered = sorted(values)
    found = {f"p{share}": ordered[max(-(-len(ordered) * share // 100) - 1, 0)] for share in (50, 90, 99)}
    return {**found, "max": ordered[-1], "mean": sum(ordered) / len(ordered)}
