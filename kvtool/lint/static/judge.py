"""Judging a template's expressions: which rule names them, and how much stable text stands behind.

Names and the words beside an expression stand in for the values that a log would show. Severity follows
the stable characters after it, so a date that stands last stays silent.
"""

import re

from kvtool.blocks import fingerprint
from kvtool.lint import labels
from kvtool.lint.static.pieces import Prompt
from kvtool.report import Finding, Fix, Location, Severity

CHARACTERS_PER_TOKEN = 4
WARNING, ERROR = 160, 2000
"""Stable characters behind an expression from which it is a warning (more than a block), an error."""

_W, _E = r"(?<![A-Za-z])", r"(?![A-Za-z])"
_CAUSES: tuple[tuple[str, str, re.Pattern[str], Fix], ...] = (
    (
        "KV101",
        "clock-time",
        re.compile(
            rf"(?:\bnow|utcnow|current_?time|time_now|timestamp|date_?time|clock|strftime_now|"
            rf"time\.(?:time|ctime|localtime|gmtime|strftime|time_ns)|asctime|isoformat|"
            rf"{_W}time{_E}|{_W}ts{_E}|Date\.now|new Date)",
            re.I,
        ),
        Fix("move-to-last-user", True),
    ),
    (
        "KV102",
        "calendar-date",
        re.compile(
            rf"(?:\btoday|weekday|day_?of_?week|current_?da(?:te|y)|{_W}date{_E}|date_?string|{_W}day{_E})",
            re.I,
        ),
        Fix("freeze", True),
    ),
    (
        "KV103",
        "request-nonce",
        re.compile(
            rf"(?:uuid|nonce|request_?id|trace_?id|correlation_?id|span_?id|token_hex|token_urlsafe|randint|"
            rf"{_W}random{_E}|urandom|getrandbits|billing|message_?id|run_?id|{_W}rand)",
            re.I,
        ),
        Fix("strip", False),
    ),
    (
        "KV104",
        "session-token",
        re.compile(
            r"(?:session|conversation_?id|thread_?id|chat_?id|tmp|temp_?dir|scratch|mkdtemp|sandbox)", re.I
        ),
        Fix("move-to-last-user", True),
    ),
    (
        "KV105",
        "environment",
        re.compile(
            rf"(?:\bcwd|getcwd|working_?dir|git_|{_W}git{_E}|branch|commit|hostname|platform|listdir|glob|file_?tree|"
            rf"directory|environ|uname|repo(?:sitory)?{_E}|{_W}os{_E}|open_?files|workspace|project)",
            re.I,
        ),
        Fix("move-to-last-user", True),
    ),
    (
        "KV106",
        "counter",
        re.compile(
            rf"(?:remaining|usage|used|tokens?{_E}|{_W}left{_E}|token_?count|turn|step|attempt|iteration|"
            r"budget|progress|counter|n_?messages|message_?(?:count|number)|num_)",
            re.I,
        ),
        Fix("move-to-last-user", True),
    ),
    (
        "KV301",
        "context-before-history",
        re.compile(
            rf"(?:memor(?:y|ies)|retriev|documents?{_E}|{_W}docs{_E}|context{_E}|passages?|snippets?|search_?results|"
            rf"knowledge|chunks?{_E}|history|summary|notes|facts)",
            re.I,
        ),
        Fix("move-to-last-user", True),
    ),
    (
        "KV107",
        "user-field",
        re.compile(
            rf"(?:user|customer|client_name|e_?mail|{_W}name{_E}|first_name|last_name|account|{_W}plan{_E}|tier|locale|"
            rf"language|time_?zone|profile|persona|company|organi[sz]ation|tenant)",
            re.I,
        ),
        Fix("move-to-last-user", True),
    ),
)


def findings(prompt: Prompt, file: str) -> list[Finding]:
    """Findings of one template, in the order of its text."""
    found = []
    dynamic = [piece for piece in prompt.pieces if piece.expression is not None and not piece.constant]
    for number, piece in enumerate(prompt.pieces):
        if piece.expression is None or piece.constant:
            continue
        after = prompt.stable_after(number)
        if after < WARNING:
            continue
        before = "".join(p.text for p in prompt.pieces[max(number - 1, 0) : number] if p.expression is None)
        code, name, fix = _cause(piece.expression, piece.hint, before)
        severity: Severity = "error" if after >= ERROR and code != "KV107" else "warning"
        slot = f"{before.rsplit(chr(10), 1)[-1][-60:].lstrip()}{{{piece.expression.strip()[:60]}}}"
        own = prompt.stable_after(-1)
        head = own - after
        found.append(
            Finding(
                code=code,
                name=name,
                severity=severity,
                message=f"{after:,} stable characters stand behind `{piece.expression.strip()[:60]}`",
                fingerprint=fingerprint(code.encode(), prompt.path.encode(), slot.encode()),
                location=Location(file, piece.line, prompt.path, prompt.role, piece.start, piece.end),
                slot=slot,
                examples=[piece.text[:120]],
                requests=0,
                sessions=0,
                distinct_values=0,
                lost_tokens=after // CHARACTERS_PER_TOKEN,
                hit_rate_if_fixed=1.0 if len(dynamic) == 1 else _shared_if_fixed(prompt, number, head, own),
                fix=fix,
            )
        )
    return found


def _shared_if_fixed(prompt: Prompt, number: int, head: int, own: int) -> float:
    """Part of the stable text before the first expression that is left when this one is gone."""
    if any(p.expression is not None and not p.constant for p in prompt.pieces[:number]):
        return head / own if own else 0.0
    rest = 0
    for piece in prompt.pieces[number + 1 :]:
        if piece.expression is not None and not piece.constant:
            break
        rest += len(piece.text)
    return min((head + rest) / own, 1.0) if own else 0.0


def _cause(expression: str, hint: str, before: str) -> tuple[str, str, Fix]:
    """By the expression itself, then by what the code says of it, then by the words before it."""
    for said in (expression, hint):
        for code, name, pattern, fix in _CAUSES:
            if said and pattern.search(said):
                return code, name, fix
    label = re.split(r"[.!?]\s", before.rsplit("\n", 1)[-1])[-1][-labels.REACH :]
    nearest: tuple[int, str, str, Fix] | None = None
    for code, name, pattern, fix in _CAUSES:
        for match in pattern.finditer(label):
            distance = len(label) - match.end()
            if nearest is None or distance < nearest[0]:
                nearest = distance, code, name, fix
    if nearest is not None:
        return nearest[1:]
    return "KV100", "unnamed-slot", Fix("report", False)
