"""lint --fix and --diff: safe edits made in the logs themselves, or shown as a unified diff."""

import difflib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kvtool.lint.check import Priced, edits_of, examine
from kvtool.lint.corpus import readable
from kvtool.lint.rewrite import Unwritable, rewritten
from kvtool.lint.run import LintConfig, sort_paths
from kvtool.lint.settings import selected
from kvtool.logs.reader import Log, Row, open_log
from kvtool.logs.writer import write_log
from kvtool.prompts.normalizer import Normalizer
from kvtool.tokens import PromptEncoder


def fix_logs(
    paths: Sequence[str],
    config: LintConfig,
    load_encoder: Callable[[], PromptEncoder],
    unsafe: bool,
    write: bool,
) -> tuple[int, list[str]]:
    """(rows changed, unified diff). With `write` the files are replaced, each whole or not at all.

    Findings count over all logs together; stdin and templates are left alone.
    """
    logs = [name for name in sort_paths(paths, config)[0] if Path(name).is_file()]
    opened = [(name, open_log([name], format=config.format)) for name in logs]
    read = [(name, log, list(log.rows())) for name, log in opened]
    requests = [one for _, _, rows in read for row in rows for one in row.requests if readable(one)]
    if not requests:
        return 0, []
    encoder = load_encoder()
    priced = examine(encoder.taken(requests)[0], encoder, config.block_size)
    priced = [one for one in priced if _wanted(one, config)]
    normalizer = Normalizer(edits_of(priced, unsafe))
    changed = 0
    diff: list[str] = []
    for name, log, rows in read:
        values = [_edited(row, normalizer) for row in rows]
        count = sum(new is not row.value for row, new in zip(rows, values, strict=True))
        if count:
            changed += count
            diff += _diff(name, rows, values)
            if write:
                _replace(Path(name), log, rows, values)
    return changed, diff


def _wanted(priced: Priced, config: LintConfig) -> bool:
    return selected(priced.finding.code, config.select, config.extend_select, config.ignore)


def _edited(row: Row, normalizer: Normalizer) -> Any:
    try:
        return rewritten(row, normalizer)
    except Unwritable:
        return row.value


def _replace(path: Path, log: Log, rows: Sequence[Row], values: Sequence[Any]) -> None:
    beside = path.with_name(f".fixed-{path.name}")
    try:
        write_log(beside, ((row.source, value) for row, value in zip(rows, values, strict=True)), log)
        beside.chmod(path.stat().st_mode & 0o777)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _diff(name: str, rows: Sequence[Row], values: Sequence[Any]) -> Iterator[str]:
    """A unified diff of the rows as indented JSON, so that only what changed is shown."""
    for row, value in zip(rows, values, strict=True):
        if value is not row.value:
            before, after = (
                json.dumps(one, indent=1, ensure_ascii=False, default=str).splitlines()
                for one in (row.value, value)
            )
            yield from difflib.unified_diff(
                before,
                after,
                f"{name}:{row.source.row}",
                f"{name}:{row.source.row} (fixed)",
                n=1,
                lineterm="",
            )
