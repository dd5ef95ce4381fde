"""What a prewarm plan and a run have to say, for programs and for people."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvtool.analysis.plan import Plan
from kvtool.engine.allocation import GateFailed, Verdict
from kvtool.engine.prewarm import PrewarmResult
from kvtool.engine.storage.identity import Identity
from kvtool.engine.worth import Priced, shares_json, shares_tables
from kvtool.report import Column, Report, Table
from kvtool.tokens import PromptEncoder

SHOWN = 20
"""Stretches that a dry run lists."""

PREVIEW = 60
"""Characters shown from a stretch's end."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive blocks of a chain that equally many requests use: tokens [start, end) of a prompt."""

    start: int
    end: int
    hits: int
    bytes: int
    last: int


def stretches(plan: Plan) -> list[Stretch]:
    """All stretches, those that save most tokens first."""
    found: list[Stretch] = []
    first = 0
    for row in range(1, len(plan) + 1):
        if row < len(plan) and plan.parent[row] == row - 1 and plan.hits[row] == plan.hits[row - 1]:
            continue
        start = int(plan.depth[first]) * plan.block_size
        end = (int(plan.depth[row - 1]) + 1) * plan.block_size
        found.append(Stretch(start, end, int(plan.hits[first]), int(plan.bytes[first:row].sum()), row - 1))
        first = row
    return sorted(found, key=lambda one: (-one.hits * (one.end - one.start), one.last))


def plan_json(plan: Plan, identity: Identity, encoder: PromptEncoder) -> dict[str, Any]:
    """The `plan` object of kvtool.prewarm/1."""
    forecast = plan.forecast
    total = int(plan.bytes.sum())
    return {
        "blocks": len(plan),
        "tokens": forecast.tokens,
        "tokens_unshared": forecast.tokens_unshared,
        "bytes": total,
        "bits_per_element": 8 * total / (len(plan) * identity.shape.elements) if len(plan) else None,
        "hit_rate": {
            "tokens": round(forecast.hit_rate, 6),
            "with_cache": round(forecast.hit_rate_cached, 6),
            "cache_alone": round(forecast.hit_rate_cold, 6),
            "expected": None if forecast.hit_rate_expected is None else round(forecast.hit_rate_expected, 6),
        },
        "flops_saved": forecast.flops_saved,
        "prompt_tokens": forecast.prompt_tokens,
        "split_tokens": forecast.split_tokens,
        "left_out": {
            "under_used": forecast.under_used,
            "over_budget": forecast.over_budget,
            "too_deep": forecast.too_deep,
            "not_text": forecast.not_text,
        },
        **shares_json(plan),
        "prefixes": [
            {
                "start": one.start,
                "end": one.end,
                "requests": one.hits,
                "expected_hits": round(float(plan.expected[one.last]), 3),
                "saved_tokens": one.hits * (one.end - one.start),
                "bytes": one.bytes,
                "preview": _preview(plan, one.last, encoder),
            }
            for one in stretches(plan)[:SHOWN]
        ],
    }


def plan_report(data: dict[str, Any], priced: Priced) -> Report:
    """A dry run."""
    plan = data["plan"]
    table = Table(
        "What would be stored, by tokens saved",
        [
            Column("tokens"),
            Column("requests", "count"),
            Column("expected"),
            Column("saved", "count"),
            Column("size", "bytes"),
            Column("ends with"),
        ],
        [
            [
                f"{row['start']}-{row['end']}",
                row["requests"],
                f"{row['expected_hits']:,.1f}",
                row["saved_tokens"],
                row["bytes"],
                row["preview"],
            ]
            for row in plan["prefixes"]
        ],
    )
    empty = priced.emptiness()
    if empty is not None:
        return Report(data, headline=[f"nothing to prewarm: {empty[0]}; {empty[1]}"], notes=_notes(data))
    tables = [table, *shares_tables(plan), priced.table()]
    return Report(data, headline=_headline(data), tables=tables, notes=_notes(data))


def run_json(result: PrewarmResult, seconds: float) -> dict[str, Any]:
    """The run's own fields of kvtool.prewarm/1; `seconds` is what the run took."""
    visited = result.tokens_computed + result.tokens_again
    return {
        "blocks": result.blocks,
        "new_blocks": result.new_blocks,
        "files": result.files,
        "tokens_computed": result.tokens_computed,
        "tokens_computed_again": result.tokens_again,
        "tokens_loaded": result.tokens_loaded,
        "bytes": result.bytes,
        "bits_per_element": result.bits_per_element,
        "kl": result.kl,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(visited / seconds, 1) if visited else None,
        "up_to_date": result.up_to_date,
        "codecs": [
            {"name": name, "blocks": blocks, "bytes": size} for name, (blocks, size) in result.codecs.items()
        ],
        "tokens_measured": result.tokens_measured,
        "gate": None if result.verdict is None else gate_json(result.verdict),
    }


def gate_json(verdict: Verdict) -> dict[str, Any]:
    """The `gate` object of kvtool.prewarm/1."""
    return {**asdict(verdict), "holds": verdict.holds}


def gate_report(data: dict[str, Any], error: GateFailed) -> Report:
    """A run that stored nothing."""
    data = {**data, "gate": gate_json(error.verdict)}
    return Report(data, headline=[f"nothing stored: {error.message}"], notes=[error.hint])


def run_report(data: dict[str, Any], priced: Priced) -> Report:
    """A finished run."""
    plan = data["plan"]
    if data["up_to_date"]:
        first = f"{data['out']}: up to date, {data['blocks']:,} blocks"
    else:
        first = f"{data['out']}: {data['new_blocks']:,} new blocks, {data['blocks']:,} in all"
    rate = f", {data['tokens_per_second']:,.0f} tokens/s" if data["tokens_per_second"] else ""
    table = Table(
        "",
        [
            Column("blocks", "count"),
            Column("tokens computed", "count"),
            Column("without sharing", "count"),
            Column("size", "bytes"),
            Column("bits/element"),
            Column("KL"),
        ],
        [
            [
                data["blocks"],
                data["tokens_computed"],
                plan["tokens_unshared"],
                data["bytes"],
                f"{data['bits_per_element']:.3f}",
                "not measured" if data["kl"] is None else f"{data['kl']:.2g}",
            ]
        ],
    )
    headline = [f"{first} ({data['seconds']:.1f} s{rate})", *_headline(data)[1:]]
    gate = data["gate"]
    if gate is not None:
        headline.append(
            f"gate: mean KL {gate['kl']:.2g} of {gate['max_kl']:.2g} over {gate['continuations']} held-back "
            f"continuations, {_calls(gate)}"
        )
    codecs = Table(
        "Stored as",
        [Column("codec"), Column("blocks", "count"), Column("size", "bytes")],
        [[row["name"], row["blocks"], row["bytes"]] for row in data["codecs"]],
    )
    tables = [table, *([codecs] if len(data["codecs"]) > 1 else []), priced.table()]
    return Report(data, headline=headline, tables=tables, notes=_notes(data))


def _calls(gate: dict[str, Any]) -> str:
    if not gate["calls"]:
        return "none of which calls a tool"
    return (
        f"{gate['calls_unchanged']} of {gate['calls']} greedy tool calls unchanged "
        f"(KL {gate['calls_kl']:.2g} of {gate['max_calls_kl']:.2g})"
    )


def _headline(data: dict[str, Any]) -> list[str]:
    plan = data["plan"]
    rates = plan["hit_rate"]
    saved = data["load_or_compute"]["seconds_saved"]
    sharing = plan["tokens"] / plan["tokens_unshared"] if plan["tokens_unshared"] else 1.0
    return [
        f"{plan['blocks']:,} blocks, {plan['tokens']:,} tokens to compute instead of "
        f"{plan['tokens_unshared']:,} without sharing ({sharing:.2f})",
        f"predicted hit rate on the log: {rates['tokens']:.1%} from the shards, "
        f"{rates['with_cache']:.1%} with a cache too, {rates['cache_alone']:.1%} with the cache alone",
        f"expected over as much traffic again: {saved:,.1f} s of prefill saved"
        + ("" if rates["expected"] is None else f", hit rate {rates['expected']:.1%} from the shards"),
    ]


def _notes(data: dict[str, Any]) -> list[str]:
    plan = data["plan"]
    left = plan["left_out"]
    reasons = [
        (left["over_budget"], "are over --budget or --tenant-budget"),
        (left["too_deep"], "lie beyond the model's last position"),
        (left["under_used"], "have fewer users than --min-requests"),
    ]
    notes = [f"{count:,} blocks left out: they {reason}" for count, reason in reasons if count]
    if left["not_text"]:
        tokens = left["not_text"] * data["block_size"]
        notes.append(
            f"{left['not_text']:,} blocks ({tokens:,} tokens) left out: they hold or follow an image, sound "
            "or file, and a server of text is never asked for them"
        )
    notes.extend(
        f"--budget {tier}: not used, loading from it would be slower than computing"
        for tier in data["load_or_compute"]["unused"]
    )
    if plan["split_tokens"]:
        share = plan["split_tokens"] / (plan["tokens"] + plan["split_tokens"])
        notes.append(
            f"prompts part inside a block: {plan['split_tokens']:,} stored tokens ({share:.1%}) are copies; "
            "a smaller --block-size makes fewer"
        )
    return notes


def _preview(plan: Plan, row: int, encoder: PromptEncoder) -> str:
    rows: list[int] = []
    while row >= 0 and len(rows) * plan.block_size < PREVIEW:
        rows.append(row)
        row = int(plan.parent[row])
    text = encoder.tokenizer.decode(np.ravel(plan.tokens[rows[::-1]]).tolist())
    return " ".join(text.split())[-PREVIEW:]
