"""What the report page shows beyond a command's JSON: aggregated pictures of a log, of plain values only.

Commands fill a `Page`, renderers/html draws it; a section that is None or empty is left out. Everything is
bounded, whatever the log: a page over millions of requests is no larger than one over thousands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the head of the page. text: as printed; note: what it is of, in a few words."""

    title: str
    text: str
    note: str
    strong: bool = False


PieceKind = Literal["text", "value", "slot", "gap"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of a prompt. text: what all share; value: what varies; slot: what the finding is about; gap: a
    note of what is left out here."""

    kind: PieceKind
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a diff. mark: " " in both, "-" only as logged, "+" only as normalized, "~" left out."""

    mark: Literal[" ", "-", "+", "~"]
    text: str


@dataclass(frozen=True, slots=True)
class Exhibit:
    """A finding in the prompt it was found in. `index` counts within Report.findings.

    before, prompt_tokens: tokens of that prompt in front of the slot, and all of them; before is None where
    the cause has no single place. why, instead: the rule's own words.
    """

    index: int
    role: str
    path: str
    pieces: Sequence[Piece]
    samples: Sequence[str]
    before: int | None
    prompt_tokens: int
    diff: Sequence[Line]
    diff_note: str
    why: str
    instead: str


@dataclass(frozen=True, slots=True)
class Branch:
    """Consecutive blocks of the trie that the same requests use, or several small branches as one.

    parent: row of the branch it grows from, -1 at the top. start, tokens: where it begins in a prompt and how
    long it is. weight: tokens x requests of it and of all below it. reused: share of its own tokens x
    requests that an unbounded cache serves. merged: how many branches this row stands for.
    """

    parent: int
    start: int
    tokens: int
    requests: int
    sessions: int
    weight: int
    reused: float
    merged: int
    text: str


@dataclass(frozen=True, slots=True)
class Curve:
    """Token hit rate of one policy: points of (blocks, rate), ascending."""

    policy: str
    points: Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """A model whose memory sizes mark the capacity axis. bytes_per_token: K and V in 16 bits."""

    name: str
    bytes_per_token: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """Hit rate against capacity. distinct_blocks: where an unbounded cache begins."""

    block_size: int
    distinct_blocks: int
    curves: Sequence[Curve]
    models: Sequence[MemoryModel]


@dataclass(frozen=True, slots=True)
class BlockSize:
    """Token hit rate and distinct blocks at one block size."""

    block_size: int
    tokens: float
    distinct_blocks: int


@dataclass(frozen=True, slots=True)
class Interval:
    """Requests that arrived together. start: µs UTC, or the first request's number in a log without times."""

    start: int
    requests: int
    prompt_tokens: int
    saved_tokens: int


@dataclass(frozen=True, slots=True)
class OverTime:
    """Consecutive intervals of equal length. timed: `start` is a time; width: µs or requests."""

    timed: bool
    width: int
    intervals: Sequence[Interval]


@dataclass(frozen=True, slots=True)
class Call:
    """A request of a session. at: as Interval.start."""

    at: int
    prompt_tokens: int
    saved_tokens: int


@dataclass(frozen=True, slots=True)
class Session:
    """A session's requests; `calls` has at most a screenful of them, evenly chosen."""

    name: str
    requests: int
    prompt_tokens: int
    saved_tokens: int
    calls: Sequence[Call]


@dataclass(frozen=True, slots=True)
class Sessions:
    """The sessions with most prompt tokens, of `total`, by their first request."""

    timed: bool
    total: int
    rows: Sequence[Session]


@dataclass(frozen=True, slots=True)
class Route:
    """One way to spread requests over replicas. load: busiest replica's computed tokens over the mean."""

    routing: str
    tokens: float
    load: float


@dataclass(frozen=True, slots=True)
class Routing:
    """Routings compared at one capacity, all replicas together; `single` is one cache of that size."""

    replicas: int
    capacity_blocks: int
    policy: str
    single: float
    rows: Sequence[Route]


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """Consecutive stored blocks as one cell of the heat strip, in storage order.

    bits: stored bits per element. kl: largest KL divergence measured, None where none was measured.
    """

    blocks: int
    depth: int
    requests: int
    bytes: int
    bits: float
    kl: float | None
    protected: bool
    codec: str


@dataclass(frozen=True, slots=True)
class Storage:
    """A prewarm plan. value: (bytes, saved tokens) as blocks are taken, the densest first."""

    cells: Sequence[StoredBlock]
    value: Sequence[tuple[int, int]]
    budget: int | None


@dataclass(frozen=True, slots=True)
class Step:
    """Something to do next; `command` is ready to be pasted, "" where there is none."""

    title: str
    text: str
    command: str = ""


@dataclass(frozen=True)
class Page:
    """A report page. redacted: values of the log are masked. served, served_fixed: token hit rate as logged
    and with all safe fixes; lost_tokens lie between them. with_tables: the report's own tables follow the
    pictures. caveat: of what the findings judge, where that is not the whole log."""

    title: str
    subtitle: str
    figures: Sequence[Figure] = ()
    redacted: bool = True
    prompt_tokens: int = 0
    lost_tokens: int = 0
    served: float = 0.0
    served_fixed: float | None = None
    exhibits: Sequence[Exhibit] = ()
    trie: Sequence[Branch] = ()
    capacity: Capacity | None = None
    block_sizes: Sequence[BlockSize] = ()
    block_size: int = 0
    over_time: OverTime | None = None
    sessions: Sessions | None = None
    routing: Routing | None = None
    storage: Storage | None = None
    steps: Sequence[Step] = ()
    with_tables: bool = False
    caveat: str = ""
