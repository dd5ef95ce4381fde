"""Normalizing a log: find the causes, edit the rows, write them back, measure what was written."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from kvtool.errors import KvtoolError
from kvtool.files import check_targets
from kvtool.lint.check import Priced, edits_of, examine
from kvtool.lint.corpus import arrival_order, readable
from kvtool.lint.price import replayed
from kvtool.lint.rewrite import Unwritable, rewritten
from kvtool.logs.reader import Log, Row
from kvtool.logs.writer import write_log
from kvtool.prompts.normalizer import Normalizer
from kvtool.report import Column, Report, Table, plural
from kvtool.requests import Request
from kvtool.tokens import PromptEncoder


@dataclass(slots=True)
class _Written:
    """How many rows were changed, and which could not be."""

    changed: int = 0
    unwritable: int = 0
    reason: str = ""
    first: str = ""


def normalize(
    log: Log,
    load_encoder: Callable[[], PromptEncoder],
    output: Path,
    rules_out: Path | None,
    block_size: int,
    unsafe: bool,
    reopen: Callable[[Path], Log],
    advance: Callable[[int], None],
    notes: list[str],
) -> Report:
    """Write `log`, fixed, to `output` and its edits to `rules_out`; report hit rates by replay.

    The rate afterwards is that of the written file, read again. Raises KvtoolError before anything is
    written where an output is an input. Holds the whole log in memory.
    """
    refuse_targets(log, output, rules_out)
    rows: list[Row] = []
    for number, row in enumerate(log.rows(), start=1):
        rows.append(row)
        advance(number)
    requests = [request for row in rows for request in row.requests if readable(request)]
    if not requests:
        raise KvtoolError(
            f"{log.files[0]}: no prompt in text", "normalize needs messages, not block or token ids"
        )
    encoder = load_encoder()
    before = _rate(requests, encoder, block_size)
    priced = examine(requests, encoder, block_size)
    normalizer = Normalizer(edits_of(priced, unsafe))
    written = _Written()
    write_log(output, [(row.source, _edited(row, normalizer, written)) for row in rows], log)
    if rules_out is not None:
        normalizer.save(rules_out)
    after = _rate([one for one in reopen(output) if readable(one)], encoder, block_size)
    return _report(log, priced, normalizer, written, (before, after), len(rows), notes)


def refuse_targets(log: Log, output: Path, rules_out: Path | None) -> None:
    """KvtoolError where a target is one of the log's files, or both targets are the same."""
    targets = [target for target in (output, rules_out) if target is not None]
    inputs = [source.container.input.file for source in log.sources]
    check_targets(inputs, *targets)
    for target in targets:
        for file in map(Path, inputs):
            if len(log.files) > 1 and (target / file.name).resolve() == file.resolve():
                raise KvtoolError(f"{target} holds the input {file.name}", "name another folder")
    if len(targets) == 2 and targets[0].resolve() == targets[1].resolve():
        raise KvtoolError(f"{output}: the log and its rules cannot be one file")


def _rate(requests: list[Request], encoder: PromptEncoder, block_size: int) -> float:
    return replayed(requests, arrival_order(requests), encoder, block_size).tokens


def _edited(row: Row, normalizer: Normalizer, written: _Written) -> object:
    try:
        value = rewritten(row, normalizer)
    except Unwritable as error:
        written.unwritable += 1
        if not written.first:
            written.first, written.reason = f"{row.source.file}:{row.source.row}", str(error)
        return row.value
    written.changed += value is not row.value
    return value


def _report(
    log: Log,
    priced: list[Priced],
    normalizer: Normalizer,
    written: _Written,
    rates: tuple[float, float],
    rows: int,
    notes: list[str],
) -> Report:
    fixed = set(normalizer.edits)
    left = [one.finding for one in priced if not fixed.intersection(one.edits)]
    notes = [*notes, *log.notes, *map(str, log.skipped)]
    if written.unwritable:
        notes.append(
            f"{plural(written.unwritable, 'row')} not changed: {written.reason}, first at {written.first}"
        )
    if left:
        codes = ", ".join(sorted({finding.code for finding in left}))
        notes.append(f"not fixed (no safe fix, or see --unsafe): {codes}")
    data = {
        "schema": "kvtool.normalization/1",
        "source": {"files": log.files, "format": log.format, "rows": rows},
        "hit_rate": {"before": rates[0], "after": rates[1]},
        "rows_changed": written.changed,
        "rows_unwritable": written.unwritable,
        "edits": [asdict(edit) for edit in normalizer.edits],
        "findings": [one.finding.to_json() for one in priced],
        "notes": notes,
    }
    table = Table(
        "Edits",
        [Column("rule"), Column("edit"), Column("where"), Column("value goes to")],
        [
            [edit.code, edit.action, getattr(edit, "where", "tools"), getattr(edit, "target", None)]
            for edit in normalizer.edits
        ],
    )
    headline = [
        f"hit rate {rates[0]:.1%} -> {rates[1]:.1%} of prompt tokens, measured by replay",
        f"{written.changed:,} of {plural(rows, 'row')} changed",
    ]
    return Report(data, headline, [table] if normalizer.edits else [], left, notes)
