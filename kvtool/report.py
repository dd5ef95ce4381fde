"""What a command has to say, before any format: findings, tables, notes. Renderers draw it.

`Report.data` is the command's JSON document (see docs/reference/json.md); the rest is for people.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from kvtool.page import Page

Severity = Literal["error", "warning", "info"]
Action = Literal["move-to-last-user", "freeze", "strip", "sort", "canonicalize", "report"]


@dataclass(frozen=True, slots=True)
class Location:
    """Where a finding stands: characters [start, end) of the string at `path` in row `row` of `file`."""

    file: str
    row: int
    path: str
    role: str | None
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Fix:
    """What would repair a finding. `safe` fixes keep the meaning of the prompt."""

    action: Action
    safe: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause of lost prefix tokens, with its price.

    lost_tokens: prompt tokens that a cache would serve more with this finding repaired: by itself, or
    beside the repairs of all others, whichever is more.
    hit_rate_if_fixed: token hit rate of a replay with this one finding repaired.
    fingerprint: rule + path + slot template; stable across runs and row numbers.
    marginal_gain: rise of the token hit rate when it is repaired after all findings listed before it.
    lost_usd: what the lost tokens cost more than cached ones; None where no price was given.
    lost_gpu_seconds: prefill time of the lost tokens; None where no model was given.
    """

    code: str
    name: str
    severity: Severity
    message: str
    fingerprint: str
    location: Location
    slot: str
    examples: list[str]
    requests: int
    sessions: int
    distinct_values: int
    lost_tokens: int
    hit_rate_if_fixed: float
    fix: Fix
    marginal_gain: float = 0.0
    lost_usd: float | None = None
    lost_gpu_seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The FINDING object of the JSON contract."""
        fields = asdict(self)
        for name in ("lost_usd", "lost_gpu_seconds"):
            if fields[name] is None:
                del fields[name]
        return fields


@dataclass(frozen=True, slots=True)
class Column:
    """A table column; `unit` decides how a renderer prints a value."""

    title: str
    unit: Literal["text", "count", "rate", "bytes", "seconds", "ratio"] = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows for people. Cells are raw values; None prints as a dash."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str | int | float | None]]


@dataclass(slots=True)
class Report:
    """What a command returns. Ten lines first: headline, then findings and tables, then notes, then
    `closing`, the line that a reader must not miss.

    details: tables that a terminal shows only with `all_details`, and then all findings too, not the five
    dearest. page: for --report, made only where it is asked for.
    """

    data: dict[str, Any]
    headline: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    closing: list[str] = field(default_factory=list)
    details: list[Table] = field(default_factory=list)
    all_details: bool = True
    page: Page | None = None


def plural(count: int, noun: str) -> str:
    """`1 row`, `2 rows`, `1,000 rows`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
