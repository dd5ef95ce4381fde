"""analyze: a stream of requests -> a workload and everything that is said about it."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd
from typing import Any

import numpy as np

from kvtool.ahead import ahead
from kvtool.analysis.build import WorkloadBuilder, arrival_order, by_kind, encode
from kvtool.analysis.curve import LruCurve, capacities
from kvtool.analysis.filter import RowFilter
from kvtool.analysis.hit_rates import HitRates, capped, hit_rates, matched_blocks, ratio
from kvtool.analysis.prefixes import HotPrefix, Usage, hot_prefixes, usage
from kvtool.analysis.runs import Runs
from kvtool.analysis.sessions import infer_sessions, split_sessions
from kvtool.analysis.workload import Workload
from kvtool.blocks import DEFAULT_BLOCK_SIZE
from kvtool.errors import KvtoolError
from kvtool.logs.reader import Log
from kvtool.logs.traces import TraceBatch, trace_batches
from kvtool.media import has_media
from kvtool.report import plural
from kvtool.requests import Request
from kvtool.tokens import PromptEncoder, batches

SWEEP = (8, 16, 32, 64, 128, 256)
"""Block sizes that are always reported; those of a block-id trace are multiples of its own."""

HELD_TOKENS = 20_000_000
"""Prompt tokens whose requests are kept for lint, which reads text and replays edits: 1 or 2 GB with that."""

REQUEST_TOKENS = 250
"""A held request weighs so many tokens beyond its own: its objects, however short the prompt is."""

AHEAD = 2
"""Batches of a trace that are parsed while an earlier one goes into the trie."""

PREVIEW = 160
"""Characters of a hot prefix that are shown, from its end: heads often look alike."""


@dataclass(frozen=True)
class AnalyzeConfig:
    """block_sizes: the first is the analysis' own, () the default (or the trace's); all are reported.
    session_gap: seconds of pause that end a session. held_tokens: see HELD_TOKENS."""

    block_sizes: tuple[int, ...] = ()
    share_tenants: bool = False
    where: str | None = None
    session_gap: float | None = None
    held_tokens: int = HELD_TOKENS


@dataclass
class Analysis:
    """A log with its figures. counts: of each run. held: the requests that lint can read, by arrival."""

    runs: Runs
    encoder: PromptEncoder | None
    rates: HitRates
    counts: Usage
    curve: LruCurve
    block_sizes: list[dict[str, Any]]
    prefixes: list[HotPrefix]
    held: list[Request]
    notes: list[str] = field(default_factory=list)

    @cached_property
    def workload(self) -> Workload:
        """The log block by block: for replays and pictures, and only where a log's blocks fit into memory."""
        return self.runs.unfolded()

    @cached_property
    def usage(self) -> Usage:
        """Counts of each block."""
        return usage(self.workload)

    def capacity_rows(self) -> list[dict[str, Any]]:
        """The LRU curve at the reported capacities, as the JSON contract has it."""
        rows = []
        for capacity in capacities(self.runs):
            rates = self.curve.at(capacity)
            rows.append(
                {
                    "capacity_blocks": capacity,
                    "policy": "lru",
                    "tokens": round(rates.tokens, 6),
                    "blocks": round(rates.blocks, 6),
                    "share": round(ratio(capacity, self.runs.distinct_blocks), 6),
                }
            )
        return rows

    def prefix_rows(self) -> list[dict[str, Any]]:
        """The hot prefixes, as the JSON contract has them."""
        last = self.runs.last_blocks
        return [
            {
                "hash": self.runs.hash_of(prefix.node).hex(),
                "tokens": prefix.tokens,
                "requests": prefix.requests,
                "sessions": prefix.sessions,
                "preview": self._preview(prefix.node),
                "saved_tokens": prefix.saved,
                "node": int(last[prefix.node]),
            }
            for prefix in self.prefixes
        ]

    def _preview(self, node: int) -> str:
        if self.encoder is None:
            return ""
        text = self.encoder.tokenizer.decode(self.runs.prefix_of(node)[-PREVIEW:].tolist())
        return text[-PREVIEW:]


@dataclass(frozen=True)
class Reading:
    """A log as runs: `base` at the smallest block size, `workload` at the analysis' own."""

    base: Runs
    workload: Runs
    encoder: PromptEncoder | None
    held: list[Request]
    notes: list[str]


def read_workload(
    requests: Iterable[Request],
    load: Callable[[], PromptEncoder],
    config: AnalyzeConfig,
    progress: Callable[[int], None] = lambda _: None,
) -> Reading:
    """Read `requests` once, in bounded memory.

    `load` makes the encoder when the first prompt that needs one is met. `progress` is told how many
    requests have been read. Requests that the chat template refuses are skipped rows of a Log.
    """
    reader = _Reader(load, config, requests if isinstance(requests, Log) else None)
    columns = trace_batches(requests) if isinstance(requests, Log) and not config.where else None
    if columns is not None:
        with closing(ahead(columns, AHEAD, lambda _: 1)) as parsed:
            for trace in parsed:
                reader.read_trace(trace)
                progress(reader.seen)
    for batch in batches(requests) if columns is None else ():
        reader.read(batch)
        progress(reader.seen)
    base = reader.builder.finish()
    notes = reader.notes()
    if base.requests == 0 and reader.refused is not None:
        raise reader.refused
    if base.requests == 0:
        raise KvtoolError(f"--where {config.where}: no request is left of {reader.seen}")
    workload = base.coarser(_own_block_size(base, config))
    if (workload.session < 0).all():
        workload = infer_sessions(workload, config.session_gap)
        notes.append("the log names no sessions: they are inferred from prompts that continue others")
    elif config.session_gap is not None:
        workload = split_sessions(workload, config.session_gap)
    return Reading(base, workload, reader.encoder, reader.held_in_order(), notes)


def analyze(
    requests: Iterable[Request],
    load: Callable[[], PromptEncoder],
    config: AnalyzeConfig,
    progress: Callable[[int], None] = lambda _: None,
) -> Analysis:
    """Read `requests` as `read_workload` does, and judge them."""
    reading = read_workload(requests, load, config, progress)
    workload = reading.workload
    counts = usage(workload)
    return Analysis(
        runs=workload,
        encoder=reading.encoder,
        rates=hit_rates(workload),
        counts=counts,
        curve=LruCurve(workload),
        block_sizes=sweep(reading.base, config.block_sizes),
        prefixes=hot_prefixes(workload, counts),
        held=reading.held,
        notes=reading.notes,
    )


def sweep(base: Runs, asked: Sequence[int] = ()) -> list[dict[str, Any]]:
    """Token hit rate and distinct blocks at many block sizes, exactly, from one workload at a small one."""
    usual = [base.block_size * factor for factor in (1, 2, 4)] if base.ready_made else SWEEP
    matched = np.minimum(matched_blocks(base), base.prompt_tokens // base.block_size) * base.block_size
    whole = np.ones(len(base.parent), np.bool_)
    whole[base.leaf[base.partial]] = False
    above, below = base.above[whole], base.depth[whole] + 1
    rows = []
    for size in sorted({*usual, *asked}):
        saved = capped(matched // size, base.prompt_tokens, size).sum()
        factor = size // base.block_size
        rows.append(
            {
                "block_size": size,
                "tokens": round(ratio(saved, base.prompt_tokens.sum()), 6),
                "distinct_blocks": int((below // factor - above // factor).sum()),
            }
        )
    return rows


def _own_block_size(base: Runs, config: AnalyzeConfig) -> int:
    if not base.ready_made:
        return config.block_sizes[0] if config.block_sizes else DEFAULT_BLOCK_SIZE
    for size in config.block_sizes:
        if size % base.block_size:
            raise KvtoolError(
                f"--block-size {size}: the trace's blocks have {base.block_size} tokens",
                "choose a multiple, or leave the option out",
            )
    return config.block_sizes[0] if config.block_sizes else base.block_size


class _Reader:
    """Encodes, filters and inserts batches; keeps requests for lint while there is room."""

    def __init__(
        self, load: Callable[[], PromptEncoder], config: AnalyzeConfig, log: Log | None = None
    ) -> None:
        self.config = config
        self.log = log
        self.refused: KvtoolError | None = None
        self.load = load
        self.encoder: PromptEncoder | None = None
        self.filter = RowFilter(config.where) if config.where else None
        self.builder = WorkloadBuilder(gcd(*SWEEP, *config.block_sizes), "", config.share_tenants)
        self.seen = self.kept = self.held_tokens = 0
        self.media = False
        self.held: list[Request] = []

    def read(self, batch: Sequence[Request]) -> None:
        for part in by_kind(batch):
            if part[0].block_ids is None and self.encoder is None:
                self.encoder = self.load()
                self.builder.encoder_fingerprint = self.encoder.fingerprint
            self.seen += len(part)
            try:
                tokens = encode(part, self.encoder)
            except KvtoolError:
                part = self._rendered(part)
                if not part:
                    continue
                tokens = encode(part, self.encoder)
            if self.filter is not None:
                counts = [request.block_ids.tokens for request in part if request.block_ids is not None]
                keep = self.filter.keep(part, counts if tokens is None else [len(each) for each in tokens])
                part = [part[index] for index in keep]
                tokens = None if tokens is None else [tokens[index] for index in keep]
            self.kept += len(part)
            self.media = self.media or any(has_media(request.messages or ()) for request in part)
            self.builder.add(part, tokens)
            if tokens is not None and self.held_tokens < self.config.held_tokens:
                self.held.extend(part)
                self.held_tokens += sum(len(each) + REQUEST_TOKENS for each in tokens)

    def _rendered(self, part: Sequence[Request]) -> list[Request]:
        """Those that the chat template takes; the log counts the others."""
        assert self.encoder is not None
        taken, refused = self.encoder.taken(part)
        for request, error in refused:
            if self.log is None:
                raise error
            self.refused = self.refused or error
            self.log.skip(error.message, request.source)
        return taken

    def read_trace(self, trace: TraceBatch) -> None:
        self.seen += len(trace)
        self.kept += len(trace)
        self.builder.add_trace(trace)

    def held_in_order(self) -> list[Request]:
        order = arrival_order(
            np.array([-1 if each.arrival is None else each.arrival for each in self.held], np.int64)
        )
        return [self.held[index] for index in order]

    def notes(self) -> list[str]:
        notes = []
        if self.config.where is not None:
            notes.append(f"--where {self.config.where} kept {self.kept:,} of {plural(self.seen, 'request')}")
        if self.held and len(self.held) < self.kept:
            notes.append(f"findings judge the first {len(self.held):,} of {plural(self.kept, 'request')}")
        incomplete = sum(request.incomplete is not None for request in self.held)
        if incomplete:
            left = plural(incomplete, "incomplete request")
            notes.append(f"findings do not judge {left} of {len(self.held):,}")
        if self.media:
            notes.append("images, sound and files are counted by rule, not by the model: see the log formats")
        if self.encoder is not None and not self.encoder.tokenizer.exact:
            notes.append("tokens are counted by bytes, four to a token: name a --tokenizer for exact figures")
        return notes
