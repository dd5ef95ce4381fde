"""A finding shown where it was found: the prompt with its slot, sample values, and what a fix changes."""

from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from kvtool.lint.check import Priced
from kvtool.lint.naming import all_rules
from kvtool.lint.private import Private, cut
from kvtool.lint.redact import mask
from kvtool.page import Exhibit, Line, Piece
from kvtool.prompts import paths
from kvtool.prompts.normalizer import Normalizer
from kvtool.prompts.slots import tool_name
from kvtool.requests import Request

MOST = 24
"""Findings shown in full; the table of findings has them all."""
BEFORE, AFTER = 420, 280
"""Characters shown around a slot."""
TRIES = 8
"""Requests looked at for one that a fix changes."""
CONTEXT, LINES, WIDTH, LEAD = 1, 28, 150, 48
"""Of a diff: lines around a change, lines in all, characters of a line, and of it before the change."""


def exhibits(priced: Sequence[Priced], show_values: bool) -> list[Exhibit]:
    """The first MOST findings, in their order."""
    if not priced:
        return []
    private = Private(priced[0].corpus, show_values)
    return [_exhibit(number, one, private) for number, one in enumerate(priced[:MOST])]


def _exhibit(number: int, one: Priced, private: Private) -> Exhibit:
    index, path, role, start, end = one.candidate.place
    pieces = _prompt(index, path, start, end, private)
    names = {tool_name(tool) for tool in private.corpus.requests[index].tools or ()}
    samples = [
        example if private.show_values or set(example.split(", ")) <= names else mask(example)
        for example in one.finding.examples
    ]
    samples = list(dict.fromkeys(samples))
    encoder = private.corpus.encoder
    rendered = private.corpus.rendered[index]
    spans = [span for span in rendered.spans if span.path == path or path.startswith(span.path + ".")]
    at = None
    if spans:
        at = spans[0].start + (start - spans[0].offset if spans[0].offset >= 0 else 0)
    elif path == "tools":
        at = next((span.start for span in rendered.spans if span.path.startswith("tools")), None)
    diff, note = _diff(one, private)
    docs = next(rule.docs for rule in all_rules() if rule.code == one.finding.code)
    return Exhibit(
        index=number,
        role=role or "prompt",
        path=one.finding.location.path,
        pieces=pieces,
        samples=samples,
        before=None if at is None else len(encoder.tokenizer.encode(rendered.text[:at])),
        prompt_tokens=len(encoder.tokenizer.encode(rendered.text)),
        diff=diff,
        diff_note=note,
        why=docs.why,
        instead=docs.instead,
    )


def _prompt(index: int, path: str, start: int, end: int, private: Private) -> list[Piece]:
    request = private.corpus.requests[index]
    body = {"messages": request.messages, "tools": request.tools, "text": request.text}
    text = paths.get(body, paths.parse(path))
    if not isinstance(text, str):
        return _outline(path, request)
    shown = private.masked(index, path, text)
    varies = [span for span in private.slots(index, path) if span[1] <= start or span[0] >= end]
    first, last = max(start - BEFORE, 0), min(end + AFTER, len(text))
    pieces = [Piece("gap", f"{first:,} characters")] if first else []
    pieces += _runs(shown, first, start, varies)
    slot = shown[start:end]
    if len(slot) > BEFORE:
        half = BEFORE // 2
        pieces += [
            Piece("slot", slot[:half]),
            Piece("gap", f"{len(slot) - 2 * half:,} characters"),
            Piece("slot", slot[-half:]),
        ]
    else:
        pieces.append(Piece("slot", slot))
    pieces += _runs(shown, end, last, varies)
    return pieces + ([Piece("gap", f"{len(text) - last:,} characters")] if last < len(text) else [])


def _runs(text: str, first: int, last: int, varies: Sequence[tuple[int, int]]) -> list[Piece]:
    inside = [(max(a, first) - first, min(b, last) - first) for a, b in varies if a < last and b > first]
    return [Piece("value" if own else "text", run) for run, own in cut(text[first:last], inside)]


def _outline(path: str, request: Request) -> list[Piece]:
    """What a finding about a whole list points at: the tools by name, or the messages by role."""
    if path.startswith("tools"):
        names = [tool_name(tool) for tool in request.tools or ()]
        return [Piece("text", "tools: "), Piece("slot", ", ".join(names) or "none")]
    roles = [str(message.get("role", "?")) for message in request.messages or ()]
    return [Piece("text", "messages: "), Piece("slot", " → ".join(roles[:40]))]


def _diff(one: Priced, private: Private) -> tuple[list[Line], str]:
    """Lines that change when the finding's own edits are applied, and a note on it."""
    if not one.edits:
        return [], "No automatic fix: the cause lies in the program that builds the prompt."
    normalizer = Normalizer(one.edits)
    encoder = private.corpus.encoder
    for index in [one.candidate.place[0], *one.candidate.requests[:TRIES]]:
        request = private.request(index)
        if not request.messages:
            continue
        messages, tools = normalizer.apply(request.messages, request.tools)
        fixed = replace(request, messages=messages, tools=tools)
        before, after = encoder.render(request).text, encoder.render(fixed).text
        if before != after:
            source = private.corpus.requests[index].source
            unsafe = any(not edit.safe for edit in one.edits)
            command = "kvtool normalize --unsafe" if unsafe else "kvtool normalize"
            return (
                _lines(before.split("\n"), after.split("\n")),
                f"Row {source.row} as the model sees it, before and after {command}.",
            )
    return [], "The fix changes none of the requests looked at."


def _lines(before: Sequence[str], after: Sequence[str]) -> list[Line]:
    lines: list[Line] = []
    for group in SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(CONTEXT):
        if lines:
            lines.append(Line("~", ""))
        for kind, a, b, c, d in group:
            if kind == "equal":
                lines += [Line(" ", _window(text, 0)) for text in before[a:b] if text.strip()]
                continue
            offsets = [_first_difference(old, new) for old, new in zip(before[a:b], after[c:d], strict=False)]
            offsets += [0] * (max(b - a, d - c) - len(offsets))
            lines += [Line("-", _window(text, at)) for text, at in zip(before[a:b], offsets, strict=False)]
            lines += [Line("+", _window(text, at)) for text, at in zip(after[c:d], offsets, strict=False)]
    if len(lines) > LINES:
        more = sum(line.mark in "+-" for line in lines[LINES:])
        return [*lines[:LINES], Line("~", f"{more} more changed lines")]
    return lines


def _first_difference(a: str, b: str) -> int:
    shorter = min(len(a), len(b))
    return next((at for at in range(shorter) if a[at] != b[at]), shorter)


def _window(text: str, at: int) -> str:
    """At most WIDTH characters of a line, around a change at `at`."""
    first = max(at - LEAD, 0) if len(text) > WIDTH else 0
    last = min(first + WIDTH, len(text))
    return ("…" if first else "") + text[first:last] + ("…" if last < len(text) else "")
