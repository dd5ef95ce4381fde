"""What a varying piece of text is: a time, a date, an identifier, a number. Shapes only, no context."""

import re
from collections.abc import Sequence
from itertools import pairwise

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?"
    r"|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\.?"
)
_WEEKDAY = (
    r"(?:Mon(?:day)?|Tue(?:s(?:day)?)?|Wed(?:nesday)?|Thu(?:rs(?:day)?)?|Fri(?:day)?"
    r"|Sat(?:urday)?|Sun(?:day)?)\b\.?"
)
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_DATE = (
    r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}|\d{1,2}/\d{1,2}/\d{2}"
    rf"|{_MONTH}\s+{_DAY}\b(?:,?\s+\d{{4}}\b)?|{_DAY}\s+(?:of\s+)?{_MONTH}(?:,?\s+\d{{4}}\b)?"
    rf"|{_DAY}-{_MONTH}-\d{{2,4}}|{_MONTH}\s+\d{{4}}\b|{_DAY}/{_MONTH}/\d{{4}}"
    r"|\d{4}\s?年\s?\d{1,2}\s?月\s?\d{1,2}\s?日)"
)
_TIME = (
    r"(?:\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[AaPp]\.?[Mm]\b\.?)?|\d{1,2}\s?[AaPp]\.?[Mm]\b\.?"
    r"|\d{1,2}h\d{2}(?:m\d{2}s?)?|\d{1,2}[时点]\d{1,2}分(?:\d{1,2}秒)?)"
)
_COMPACT = r"(?:\d{8}[T_ -]?\d{6}Z?)"
_ZONE = (
    r"(?:\s?Z\b|\s?[+-]\d{2}:?\d{2}\b|\s\(?(?:UTC|GMT)(?:[+-]\d{1,2}(?::?\d{2})?)?\b\)?"
    r"|\s\(?(?:[ECMPAH][SD]?T|CES?T|EES?T|BST|IST|JST|KST|AES?T|[A-Z][a-z]+/[A-Z][A-Za-z_]+)\b\)?"
    r"|\sUhr\b|\s\d{4}\b)"  # asctime: Mon Mar  3 10:15:22 2025
)
_ATOM = rf"(?:{_DATE}|{_TIME}|{_COMPACT}|{_WEEKDAY})"
_JOIN = r"(?:T|,?\s+(?:at|on|of|the|@|-|–|—|\||/)?\s*|,\s*|_|\s*[(\[]|\s*[@|–—·]\s*|-(?=\d{1,2}[:-]))"
MOMENT = re.compile(rf"(?<![\w]){_ATOM}(?:{_ZONE})?(?:{_JOIN}{_ATOM}[)\]]?(?:{_ZONE})?)*(?:{_ZONE})?")
"""A date, a time or both, with weekday and zone, in the ways people and libraries print them."""
_HAS_TIME = re.compile(rf"{_TIME}|{_COMPACT}")
_EPOCH = re.compile(r"(?<![\w.])(?:1[0-9]{9}(?:\.\d{1,9})?|1[0-9]{12}|1[0-9]{15}|1[0-9]{18})(?![\w])")

_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_NUMBER = re.compile(r"[-+]?[$€£]?\d[\d,_ ]*(?:\.\d+)?\s?(?:%|[kKMG]i?B?|tokens?|ms|s)?")
_WORDISH = re.compile(r"[A-Za-z]{3,}")


_BLOCKS = re.compile(
    r"(?:^[ \t]*|(?<=[:>] )|(?<=[:>]))(?:On branch |HEAD detached )[^\n]*"
    r"(?:\n(?!\n)[^\n]+|\n\n(?=[ \t]|Changes |Untracked ))*"
    r"|(?:^[ \t]*|(?<=[:>] )|(?<=[:>]))[0-9a-f]{7,40} [^\n]+(?:\n[ \t]*[0-9a-f]{7,40} [^\n]+)+"
    r"|^[ \t]*(?:[MADRCU]{1,2}|\?\?|!!) [\w./-][^\n]*(?:\n[ \t]*(?:[MADRCU]{1,2}|\?\?|!!) [^\n]+)+"
    r"|^[ \t│├└─|`+-]*[\w.@-]+(?:/|\.\w{1,6})(?:\n[ \t│├└─|`+-]*[\w.@-]+(?:/|\.\w{1,6}))+[ \t]*$",
    re.M,
)
"""Git status, git log in one line each, short status, file trees: one value, though its lines may agree."""


def listings(text: str) -> list[tuple[int, int]]:
    """[start, end) of every listing of a repository or folder in `text`."""
    return [
        (match.start() + len(match[0]) - len(match[0].lstrip("\n")), match.end())
        for match in _BLOCKS.finditer(text)
    ]


def moments(text: str) -> list[tuple[int, int]]:
    """[start, end) of every date, time or epoch stamp in `text`."""
    found = []
    for match in MOMENT.finditer(text):
        sentence_ends = match[0].endswith(".") and not re.search(r"[AaPp]\.[Mm]\.$", match[0])
        end = match.end() - sentence_ends
        closing = text[end - 1]
        if closing in ")]" and {")": "(", "]": "["}[closing] not in match[0]:
            end -= 1  # it was opened before the moment
        found.append((match.start(), end))
    found += [match.span() for match in _EPOCH.finditer(text)]
    return sorted(found)


def is_clock(value: str) -> bool:
    """Mostly a moment that tells the time of day, or an epoch stamp."""
    return any(
        _HAS_TIME.search(value, start, end) is not None or _EPOCH.fullmatch(value, start, end) is not None
        for start, end in _covering(value)
    )


def is_date(value: str) -> bool:
    """Mostly a date or weekday, without the time of day."""
    return bool(_covering(value)) and not is_clock(value)


def _covering(value: str) -> list[tuple[int, int]]:
    """The moments of `value` where they make up most of it, else none."""
    spans = moments(value)
    covered = sum(end - start for start, end in spans)
    return spans if covered >= 0.6 * len(value.strip()) else []


def is_identifier(value: str) -> bool:
    """One token that no person would write: a UUID, a hash, base64, letters mixed with digits."""
    value = value.strip()
    if not value or len(value) > 512 or re.search(r"\s", value):
        return False
    if _UUID.search(value):
        return True
    core = re.sub(r"[^0-9A-Za-z]", "", value)
    if len(core) < 3:
        return False
    digits, letters = sum(c.isdigit() for c in core), sum(c.isalpha() for c in core)
    if digits and letters:
        return True
    if digits:
        return len(core) >= 5
    if len(core) >= 8 and re.fullmatch(r"[0-9a-fA-F]+", core):
        return True
    return len(core) >= 12 and _looks_random(core)


def _looks_random(core: str) -> bool:
    """Letters only: case changes inside a word, or hardly a vowel."""
    flips = sum(a.islower() and b.isupper() for a, b in pairwise(core))
    vowels = sum(c in "aeiouAEIOU" for c in core)
    return flips >= len(core) / 6 or vowels < len(core) / 6


def is_number(value: str) -> bool:
    """A count, a share, a size."""
    return _NUMBER.fullmatch(value.strip()) is not None


def number(value: str) -> float | None:
    """The first number in `value`."""
    match = re.search(r"\d[\d,_]*(?:\.\d+)?", value)
    return float(match[0].replace(",", "").replace("_", "")) if match else None


def mostly(values: Sequence[str], test: object, part: float = 0.8) -> bool:
    """Whether `test` holds for at least `part` of the non-empty `values`."""
    assert callable(test)
    filled = [value for value in values if value.strip()]
    return bool(filled) and sum(map(bool, map(test, filled))) >= part * len(filled)
