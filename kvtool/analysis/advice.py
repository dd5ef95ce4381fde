"""What to do about a hit rate, each piece of advice with the figures it rests on."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvtool.analysis.analyze import Analysis
from kvtool.analysis.hit_rates import ratio
from kvtool.report import Finding

WORTH_SAYING = 0.01
"""A gain below one percentage point is not advice."""


def advise(
    analysis: Analysis, findings: Sequence[Finding], normalized: float, incomplete: bool
) -> list[dict[str, Any]]:
    """Pieces of advice, the most urgent first: {"code", "text", "evidence"}."""
    pieces = [
        _incomplete(incomplete),
        _prompts(analysis, findings, normalized),
        _head(analysis, findings),
        block_size_advice(analysis.runs.block_size, analysis.block_sizes),
        _routing(analysis),
        _capacity(analysis),
    ]
    return [piece for piece in pieces if piece is not None]


def _incomplete(incomplete: bool) -> dict[str, Any] | None:
    if not incomplete:
        return None
    return {
        "code": "incomplete-log",
        "text": "The log does not show whole prompts (see notes): log the request bodies, and read every "
        "figure here as one about the visible part.",
        "evidence": {},
    }


def _prompts(analysis: Analysis, findings: Sequence[Finding], normalized: float) -> dict[str, Any] | None:
    gain = normalized - analysis.rates.tokens
    if gain < WORTH_SAYING:
        return None
    codes = sorted({finding.code for finding in findings if finding.fix.safe})
    return {
        "code": "fix-prompts",
        "text": f"Safe fixes for {', '.join(codes)} raise the hit rate from {analysis.rates.tokens:.1%} "
        f"to {normalized:.1%}: run kvtool normalize.",
        "evidence": {
            "tokens": round(analysis.rates.tokens, 6),
            "normalized_tokens": round(normalized, 6),
            "codes": codes,
            "gain": round(gain, 6),
        },
    }


def _head(analysis: Analysis, findings: Sequence[Finding]) -> dict[str, Any] | None:
    """Most requests share not even their first block with any before them, and lint does not know why."""
    rates = analysis.rates
    cold = ratio(int((rates.matched == 0).sum()), len(rates.matched))
    if cold < 0.5 or len(rates.matched) < 10 or findings:
        return None
    return {
        "code": "no-common-head",
        "text": f"{cold:.0%} of the requests share not one block of {analysis.runs.block_size} tokens "
        "with any earlier one: prompts begin with something of their own, or are unrelated.",
        "evidence": {"requests_without_hit": round(cold, 6)},
    }


def block_size_advice(own: int, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Whether other blocks than those of `own` tokens reuse more; rows as `sweep` gives them."""
    present = next((row for row in rows if row["block_size"] == own), None)
    if present is None:
        return None
    best = max(rows, key=lambda row: (row["tokens"], row["block_size"]))
    gain = best["tokens"] - present["tokens"]
    if gain < WORTH_SAYING:
        return None
    return {
        "code": "block-size",
        "text": f"Blocks of {best['block_size']} tokens would reuse {gain:.1%} more of the prompt tokens "
        f"than blocks of {own}, with {best['distinct_blocks']:,} distinct blocks "
        f"instead of {present['distinct_blocks']:,}.",
        "evidence": {"own": present, "best": best, "gain": round(gain, 6)},
    }


def _routing(analysis: Analysis) -> dict[str, Any] | None:
    rates = analysis.rates
    if rates.tokens < 0.05:
        return None
    within, across = rates.within_session_tokens, rates.across_session_tokens
    if within >= 4 * across:
        text = "Nearly all reuse is inside a session: with several replicas, keep each session on one."
    elif across >= within:
        text = (
            "Much of the reuse is across sessions: with several replicas, route by prefix, "
            "and prewarm the hot prefixes."
        )
    else:
        text = "Reuse is both inside and across sessions: route sessions to one replica, chosen by prefix."
    evidence = {"within_session_tokens": round(within, 6), "across_session_tokens": round(across, 6)}
    return {"code": "routing", "text": text, "evidence": evidence}


def _capacity(analysis: Analysis) -> dict[str, Any] | None:
    if analysis.rates.saved_tokens == 0:
        return None
    shares = (0.9, 0.95, 0.99)
    need = {f"{share:.0%}": analysis.curve.capacity_for(share) for share in shares}
    distinct = analysis.runs.distinct_blocks
    listed = ", ".join(f"{name} with {blocks:,}" for name, blocks in need.items())
    return {
        "code": "capacity",
        "text": f"Of what an unbounded cache saves, LRU keeps {listed} blocks of the log's {distinct:,}.",
        "evidence": {"blocks": need, "distinct_blocks": distinct},
    }
