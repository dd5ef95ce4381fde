"""What the GPU path is to reach, and whether the rows of a run of gpu.py say that it does."""

from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A column of the first row of a part that has `fields`."""

    part: str
    column: str
    fields: Row

    def of(self, rows: dict[str, list[Row]]) -> float | None:
        """Its number, None where it was not measured."""
        for row in rows.get(self.part, ()):
            if self.fields.items() <= row.items() and self.column in row:
                return float(row[self.column])
        return None


@dataclass(frozen=True)
class Aim:
    """A cell, or its ratio to another, is `at_least` or at most `value`. seed: what the seed's system had."""

    what: str
    value: float
    at_least: bool
    cell: Cell
    over: Cell | None = None
    seed: str = ""


def _kernel(name: str, batch: int, column: str) -> Cell:
    return Cell("kernels", column, {"kernel": f"decode {name}", "shape": f"{batch} x 8192"})


def _first(place: str) -> Cell:
    return Cell("first_token", f"x {place}", {"prefix": 8192, "device": "raw"})


def _sessions(column: str, sharing: bool, blocks: str = "raw") -> Cell:
    return Cell("sessions", column, {"sharing": sharing, "blocks": blocks})


RATE = Cell("decode", "tokens_per_s", {"batch": 32, "blocks": "raw"})
PEER = Cell("peers", "tokens_per_s", {"peer": "continuous batching"})
FLOOR = Cell("decode", "of_weight_floor", {"batch": 1, "blocks": "raw"})
PREFILL = Cell("prefill", "of_matrix_rate", {"tokens": 8192, "over": 0})

AIMS = (
    *(
        Aim(
            f"decode attention, batch {batch}: share of copy bandwidth",
            0.7,
            True,
            _kernel("raw", batch, "of_floor"),
        )
        for batch in (8, 32)
    ),
    *(
        Aim(
            f"decode attention, batch {batch}: time of {name} over raw",
            1.0,
            False,
            _kernel(name, batch, "seconds"),
            _kernel("raw", batch, "seconds"),
        )
        for batch in (8, 32)
        for name in ("int8", "int4")
    ),
    Aim("prefill of 8,192 tokens: share of matrix rate", 0.6, True, PREFILL),
    Aim("decode, batch 1: time over the weights' floor", 1.3, False, FLOOR),
    Aim("decode, batch 32: rate over transformers' continuous batching", 3.0, True, RATE, PEER),
    Aim("prefix of 8,192 on the device: times sooner than cold", 20.0, True, _first("resident")),
    Aim("prefix of 8,192 in host memory: times sooner than cold", 10.0, True, _first("host")),
    Aim("prefix of 8,192 on disk in int4: times sooner than cold", 1.0, True, _first("disk int4")),
    Aim(
        "20 sessions, next turn: first token, recomputed over cached",
        2.7,
        True,
        _sessions("recomputed", False),
        _sessions("second_turn", True),
        "3.8 s -> 1.4 s",
    ),
    # Of 20 x 24K tokens sharing leaves 8K + 20 x 16K to compute: no more than 1.5 times fewer.
    Aim(
        "20 sessions, all cold at once: first token, unshared over shared",
        2.7,
        True,
        _sessions("first", False),
        _sessions("first", True),
        "3.8 s -> 1.4 s",
    ),
    Aim(
        "20 sessions: memory, shared over unshared",
        60 / 92,
        False,
        _sessions("used_bytes", True),
        _sessions("used_bytes", False),
        "92 % -> 60 %",
    ),
    *(
        Aim(
            f"sessions that fit: shared {blocks} over unshared raw",
            1.6,
            True,
            _sessions("sessions_that_fit", True, blocks),
            _sessions("sessions_that_fit", False),
            "20 -> 32",
        )
        for blocks in ("raw", "int8", "int4")
    ),
)


def judged(rows: dict[str, list[Row]]) -> list[Row]:
    """Every aim that was measured, and whether it holds."""
    found = []
    for aim in AIMS:
        value, over = aim.cell.of(rows), 1.0 if aim.over is None else aim.over.of(rows)
        if value is None or not over:
            continue
        ratio = value / over
        holds = ratio >= aim.value if aim.at_least else ratio <= aim.value
        sign = ">=" if aim.at_least else "<="
        measured = f"{value:.4g}" + ("" if aim.over is None else f" / {over:.4g}")
        found.append(
            {
                "what": aim.what,
                "aim": f"{sign} {aim.value:.3g}",
                "found": ratio,
                "holds": holds,
                "of": measured,
                "seed": aim.seed,
            }
        )
    return found
