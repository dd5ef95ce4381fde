"""One lint run: paths -> logs and templates -> findings, selected, compared with a baseline, judged."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Any

from kvtool.analysis.memory import read_shape
from kvtool.errors import KvtoolError
from kvtool.lint.baseline import Baseline
from kvtool.lint.check import charged, examine
from kvtool.lint.corpus import arrival_order, readable
from kvtool.lint.ignores import without_ignored
from kvtool.lint.price import SUSTAINED, Rates, replayed
from kvtool.lint.redact import redacted
from kvtool.lint.rules import RULES
from kvtool.lint.settings import SEVERITIES, selected
from kvtool.lint.static.files import JINJA, PYTHON, STRUCTURED, SUFFIXES, TEXT, check_file
from kvtool.lint.static.text import has_slots
from kvtool.logs.reader import Log, open_log
from kvtool.logs.sources import LOG_SUFFIXES
from kvtool.report import Finding, Report, plural
from kvtool.requests import Request
from kvtool.tokens import PromptEncoder

PROSE = {".md", ".txt"}
PROMPTS = re.compile(r"prompt|system|agent|instruction|persona", re.I)
"""In the name of a file or folder: prose in it is for a model."""
SKIPPED_FOLDERS = {"node_modules", "__pycache__", "venv", "site-packages", "build", "dist"}


@dataclass(frozen=True)
class LintConfig:
    """What a run looks for and when it fails. min_hit_rate: 0..1; max_regression: percentage points.

    price: USD per million prompt tokens, (uncached, cached). model: a folder with a config.json, or
    embedded; flops: FLOP/s that a GPU reaches with it in prefill.
    """

    select: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    format: str | None = None
    block_size: int = 32
    fail_on: str = "warning"
    min_hit_rate: float | None = None
    max_regression: float | None = None
    show_values: bool = False
    price: tuple[float, float] | None = None
    model: str | None = None
    flops: float = SUSTAINED


@dataclass
class LintResult:
    """Findings left after selection and baseline; `known` were in the baseline. hit_rate: of the logs."""

    findings: list[Finding]
    known: list[Finding]
    hit_rate: float | None
    logs: list[str]
    templates: list[str]
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def lint(
    paths: Sequence[str],
    config: LintConfig,
    load_encoder: Callable[[], PromptEncoder],
    baseline: Baseline | None = None,
) -> LintResult:
    """Lint logs and templates. KvtoolError for a path that is missing or a file that cannot be read."""
    logs, templates = sort_paths(paths, config)
    found: list[Finding] = []
    notes: list[str] = []
    rate: float | None = None
    named = {Path(name) for name in paths}
    for path in templates:
        try:
            found += without_ignored(check_file(path), path)
        except KvtoolError as error:
            if path in named:
                raise
            notes.append(f"not looked at: {error.message}")
    if logs:
        log = open_log(logs, format=config.format)
        requests = [request for request in log if readable(request)]
        if requests:
            encoder = load_encoder()
            requests, refused = encoder.taken(requests)
            for request, refusal in refused:
                log.skip(refusal.message, request.source)
            if not requests:
                raise refused[0][1]
            found += charged(examine(requests, encoder, config.block_size), _rates(config))
            rate = replayed(requests, arrival_order(requests), encoder, config.block_size).tokens
        notes += [*log.notes, *map(str, log.skipped)]
        notes += _unjudged(requests)
    wanted = [one for one in found if selected(one.code, config.select, config.extend_select, config.ignore)]
    new = wanted if baseline is None else baseline.new(wanted)
    fresh = {id(one) for one in new}
    known = [one for one in wanted if id(one) not in fresh]
    if not config.show_values:
        new = redacted(new)
    result = LintResult(new, known, rate, list(logs), [str(path) for path in templates], notes)
    result.failures = _failures(result, config, baseline)
    return result


def _rates(config: LintConfig) -> Rates:
    shape = read_shape(config.model) if config.model else None
    return Rates(config.price, shape.prefill() if shape else None, config.flops)


def _unjudged(requests: Sequence[Request]) -> list[str]:
    """What the findings do not speak of."""
    if not requests:
        return ["the logs hold no prompts in text: nothing to lint in them"]
    incomplete = sum(request.incomplete is not None for request in requests)
    if not incomplete:
        return []
    return [f"findings do not judge {incomplete} incomplete requests of {len(requests)}"]


def sort_paths(paths: Sequence[str], config: LintConfig) -> tuple[list[str], list[Path]]:
    """(logs, templates) among files, folders and `-`. A JSON or YAML file is a log if a format claims it."""
    logs: list[str] = []
    templates: list[Path] = []
    for name in paths:
        path = Path(name)
        if name == "-" or not (path.is_file() or path.is_dir()):
            logs.append(name)  # stdin, a pipe, a glob, or open_log's error
            continue
        files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if _wanted(one, path))
        for file in files:
            if any(fnmatch(str(file), pattern) or fnmatch(file.name, pattern) for pattern in config.exclude):
                continue
            if _is_log(file, config.format):
                logs.append(str(file))
            elif path.is_file() or (file.suffix.lower() in SUFFIXES and _is_prompt(file, path)):
                templates.append(file)
    if not logs and not templates:
        raise KvtoolError(f"{', '.join(paths)}: nothing to lint", "name logs, templates or folders of them")
    return logs, templates


def _wanted(file: Path, root: Path) -> bool:
    parts = file.relative_to(root).parts
    hidden = any(part.startswith(".") or part in SKIPPED_FOLDERS for part in parts)
    suffixes = {suffix.lower() for suffix in file.suffixes}
    return file.is_file() and not hidden and bool(suffixes & (SUFFIXES | LOG_SUFFIXES))


def _is_prompt(file: Path, root: Path) -> bool:
    """Whether a file that a folder holds may be a prompt: most Markdown and text is documentation."""
    if file.suffix.lower() not in PROSE:
        return True
    return any(PROMPTS.search(part) for part in (root.name, *file.relative_to(root).parts))


def _is_log(file: Path, format: str | None) -> bool:
    if file.suffix.lower() in JINJA | PYTHON | TEXT:
        return False
    if format is not None:
        return True
    try:
        log = open_log([str(file)])
    except KvtoolError:
        return file.suffix.lower() not in SUFFIXES
    return file.suffix.lower() not in STRUCTURED or not _is_chat_template(log)


def _is_chat_template(log: Log) -> bool:
    """Whether a file's only request was never sent: slots in its instructions, no time, session or answer."""
    try:
        requests = list(islice(log, 2))
    except KvtoolError:
        return False
    if len(requests) != 1:
        return False
    (one,) = requests
    if not one.messages or (one.arrival, one.session, one.output) != (None, None, None):
        return False
    heads = [said for said in one.messages if said.get("role") in ("system", "developer")]
    return any(has_slots(str(said.get("content"))) for said in heads or one.messages[:1])


def _failures(result: LintResult, config: LintConfig, baseline: Baseline | None) -> list[str]:
    """Why the run fails: findings at or above --fail-on, and gates that are not met."""
    failures = []
    stopping = [one for one in result.findings if stops(one, config.fail_on)]
    if stopping:
        failures.append(f"{plural(len(stopping), 'finding')} ({config.fail_on} or worse)")
    if config.min_hit_rate is not None and (result.hit_rate or 0.0) < config.min_hit_rate:
        said = "unknown" if result.hit_rate is None else f"{result.hit_rate:.1%}"
        failures.append(f"hit rate {said} is below {config.min_hit_rate:.1%}")
    if config.max_regression is not None and baseline is not None and baseline.hit_rate is not None:
        lost = 100 * (baseline.hit_rate - (result.hit_rate or 0.0))
        if result.hit_rate is None:
            failures.append("hit rate unknown: name the logs that the baseline was made with")
        elif lost > config.max_regression:
            failures.append(f"hit rate fell by {lost:.1f} points (at most {config.max_regression:g} allowed)")
    return failures


def stops(finding: Finding, fail_on: str) -> bool:
    """Whether `fail_on` names this finding: by its severity or a worse one, its name, or a code prefix."""
    if fail_on in SEVERITIES:
        return SEVERITIES[finding.severity] >= SEVERITIES[fail_on]
    return fail_on in ("ALL", finding.name) or finding.code.startswith(fail_on)


def report(result: LintResult) -> Report:
    """The document and what people read."""
    rules = {rule.code: rule for rule in (RULES.load(name) for name in RULES.names())}
    used = sorted({one.code for one in result.findings} & rules.keys())
    data: dict[str, Any] = {
        "schema": "kvtool.lint/1",
        "source": {"logs": result.logs, "templates": result.templates},
        "hit_rate": {"tokens": result.hit_rate},
        "findings": [one.to_json() for one in result.findings],
        "known": len(result.known),
        "failures": result.failures,
        "notes": result.notes,
        "rules": [
            {
                "code": code,
                "name": rules[code].name,
                "what": rules[code].docs.what,
                "why": rules[code].docs.why,
                "instead": rules[code].docs.instead,
            }
            for code in used
        ],
    }
    looked = f"{plural(len(result.logs), 'log')} and {plural(len(result.templates), 'template')}"
    headline = [f"{plural(len(result.findings), 'finding')} in {looked}"]
    if result.hit_rate is not None:
        headline[0] += f"; hit rate {result.hit_rate:.1%}"
    if result.known:
        headline.append(f"{len(result.known):,} more in the baseline")
    notes = [*result.notes, *(f"failed: {failure}" for failure in result.failures)]
    return Report(data, headline, [], result.findings, notes)
