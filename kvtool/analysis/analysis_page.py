"""The report page of an analysis: its figures, and every picture that its workload can give."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from kvtool.analysis.analyze import Analysis
from kvtool.analysis.branches import branches
from kvtool.analysis.memory import ModelShape
from kvtool.analysis.next_steps import Options, next_steps
from kvtool.analysis.timeline import over_time, sessions
from kvtool.analysis.what_if import capacity, routing
from kvtool.page import BlockSize, Branch, Exhibit, Figure, Page
from kvtool.report import plural

SHOWN_TOKENS = 64
"""Tokens of a branch that are decoded."""
SHOWN = 180
"""Characters of them that are shown."""


def analysis_page(
    analysis: Analysis,
    document: Mapping[str, Any],
    exhibits: Sequence[Exhibit],
    logs: Sequence[str],
    options: Options,
    shape: ModelShape | None,
    price: tuple[float, float] | None,
    hide: Callable[[str], str] | None,
) -> Page:
    """The page. hide: masks text that only one session has; None shows it. options: see `next_steps`."""
    runs, rate = analysis.runs, document["hit_rate"]
    source = document["source"]
    lost = round((rate["normalized_tokens"] - rate["tokens"]) * document["tokens"]["prompt"])
    return Page(
        title="Prompt cache report",
        subtitle=f"{files(source['files'])}: {plural(source['requests'], 'request')} in "
        f"{plural(source['sessions'], 'session')}, {document['tokens']['prompt']:,} prompt tokens, "
        f"blocks of {document['block_size']}",
        figures=_figures(document, lost, price),
        redacted=hide is not None,
        prompt_tokens=document["tokens"]["prompt"],
        lost_tokens=lost,
        served=rate["tokens"],
        served_fixed=None if analysis.encoder is None else rate["normalized_tokens"],
        exhibits=exhibits,
        trie=_trie(analysis, hide),
        capacity=capacity(analysis, shape),
        block_sizes=block_sizes(document["block_sizes"]),
        block_size=document["block_size"],
        over_time=over_time(runs, analysis.rates),
        sessions=sessions(runs, analysis.rates, named=hide is None),
        routing=routing(analysis),
        steps=next_steps(document, logs, options),
        caveat=_caveat(len(analysis.held), source["requests"]),
    )


def files(names: Sequence[str]) -> str:
    """`a.jsonl`, or `a.jsonl and 3 more`."""
    first = PurePath(names[0]).name if names else "-"
    return first if len(names) < 2 else f"{first} and {len(names) - 1} more"


def block_sizes(rows: Sequence[Mapping[str, Any]]) -> list[BlockSize]:
    """Rows of `sweep`."""
    return [BlockSize(row["block_size"], row["tokens"], row["distinct_blocks"]) for row in rows]


def _caveat(judged: int, requests: int) -> str:
    if judged in (0, requests):
        return ""
    return (
        f"Findings judge the first {judged:,} of {requests:,} requests, and what fixing one would reach is "
        "of those; the figures above count the others as they are."
    )


def _figures(document: Mapping[str, Any], lost: int, price: tuple[float, float] | None) -> list[Figure]:
    rate = document["hit_rate"]
    figures = [
        Figure("Hit rate now", f"{rate['tokens']:.1%}", "of prompt tokens, with a cache that never evicts"),
    ]
    if document["tokenizer"]["chat_template"] is not None:
        gain = 100 * (rate["normalized_tokens"] - rate["tokens"])
        figures += [
            Figure(
                "After safe fixes",
                f"{rate['normalized_tokens']:.1%}",
                f"{gain:+.1f} points, measured by replaying the fixed log",
                strong=True,
            ),
            Figure("Tokens lost", f"{lost:,}", "computed again although a cache could have had them"),
        ]
    else:
        figures.append(
            Figure("Distinct tokens", f"{document['tokens']['distinct']:,}", "each computed once at best")
        )
    if price is not None:
        cost = lost * (price[0] - price[1]) / 1e6
        figures.append(Figure("Money lost", f"${cost:,.2f}", f"at {price[0]:g} and {price[1]:g} USD per 1M"))
    return figures


def _trie(analysis: Analysis, hide: Callable[[str], str] | None) -> list[Branch]:
    runs, counts, encoder = analysis.runs, analysis.counts, analysis.encoder
    above = runs.above
    blocks = runs.depth + np.int32(1) - above

    def text(head: int, last: int) -> str:
        if encoder is None:
            return ""
        start = above[head]
        stop = min(start + -(-SHOWN_TOKENS // runs.block_size), runs.depth[last] + 1)
        depth = np.arange(start, stop, dtype=np.int32)
        words = runs.words_of(np.full(len(depth), last, np.int32), depth)
        own = encoder.tokenizer.decode(words.ravel().tolist())[:SHOWN]
        return hide(own) if hide is not None and counts.sessions[head] < 2 else own

    return branches(runs.parent, above, blocks, counts.requests, counts.sessions, runs.block_size, text)
