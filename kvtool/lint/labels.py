"""What the words beside a slot say about it: `Session: {}`, `Working directory: {}`, `{}% used`."""

import re

from kvtool.prompts.slots import Slot

REACH = 60
"""Characters before a slot, and half as many behind it, that count as its label."""

REQUEST = re.compile(
    r"(?<![A-Za-z])(request|req|trace|span|correlation|nonce|billing|cch|invocation|call|message|cache.?bust|run|build)(?![A-Za-z])",
    re.I,
)
SESSION = re.compile(
    r"(?<![A-Za-z])(session|conversation|thread|chat|scratch(?:pad)?|te?mp|temporary|sandbox|workspace|container|job|run)(?![A-Za-z])|/tmp/",
    re.I,
)
ENVIRONMENT = re.compile(
    r"(?<![A-Za-z])(cwd|working dir\w*|current dir\w*|director(?:y|ies)|folder|project|repo(?:sitory)?|git|"
    r"branch|commit|head|host(?:name)?|machine|platform|operating system|os|shell|kernel|uname|files?|tree|"
    r"environment|env|version|python|node|path|status|open tabs?)(?![A-Za-z])",
    re.I,
)
COUNTER = re.compile(
    r"(?<![A-Za-z])(remaining|left|used|usage|tokens?|budget|turns?|messages?|steps?|counts?|attempts?|retry|retries|iteration|"
    r"calls?|number|no\.|context|credits?|quota|round|progress|total|elapsed|spent|cost)(?![A-Za-z])|%|#",
    re.I,
)
USER = re.compile(
    r"(?<![A-Za-z])(user(?:name)?|customer|client|member|caller|guest|patient|student|name|e-?mail|account|plan|membership|profile|contact|status|tier|"
    r"subscription|locale|language|time.?zone|country|region|city|role|company|organi[sz]ation|team|"
    r"helping|assisting|talking to|speaking (?:to|with)|chatting with|on behalf of|logged in as|signed in as|"
    r"address)(?![A-Za-z])",
    re.I,
)
CONTEXT = re.compile(
    r"(?<![A-Za-z])(memor(?:y|ies)|context|documents?|retrieved|knowledge|search results?|passages?|"
    r"snippets?|notes?|facts|excerpts?|articles?|references?|recall(?:ed)?|relevant|rag|summary|history|observations?)(?![A-Za-z])",
    re.I,
)


def label(slot: Slot) -> str:
    """The stable text of the slot's line close to it; the line above where the slot opens its line."""
    before, after = slot.line()
    if not before.strip(" \t-*>#<[("):
        lines = slot.before.rstrip().rsplit("\n", 1)
        before = lines[-1] if lines else ""
    before = re.split(r"[.!?]\s", before)[-1]
    return before[-REACH:] + " \0 " + re.split(r"[.!?](?:\s|$)", after)[0][: REACH // 2]


def nearest(slot: Slot, *patterns: re.Pattern[str]) -> re.Pattern[str] | None:
    """The pattern whose word stands closest to the slot, None where none matches its label."""
    before, after = label(slot).split("\0")
    best: tuple[int, re.Pattern[str]] | None = None
    for pattern in patterns:
        distances = [len(before) - match.end() for match in pattern.finditer(before)]
        distances += [match.start() + 10 for match in pattern.finditer(after)]
        if distances and (best is None or min(distances) < best[0]):
            best = (min(distances), pattern)
    return best[1] if best else None
