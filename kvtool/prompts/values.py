"""What a varying piece of text is: a time, a date, an identifier, a number. Shapes only, no context."""

import re
from collections.abc import Sequence
from itertools import pairwise

from kvtool.prompts.calendar_names import MONTH, WEEKDAY

EAST_ASIAN = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3"
"""Kana, Han and Hangul, for a character class: scripts that set no spaces around a value."""

_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_DAY_BEFORE = r"\d{1,2}(?:st|nd|rd|th|er|\.|º|ª)?"
"""A day whose month follows: a full stop behind it ends no sentence."""
_OF = r"(?:\s+(?:of|de|del|di)\s+|\s+|(?<=\.))"
_YEAR = r"(?:,?\s+(?:de\s+|del\s+)?\d{4}\b)?"
_DATE = (
    r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}|\d{1,2}/\d{1,2}/\d{2}"
    r"|\d{2}\.\d{2}\.\d{2}(?![\w.])|\d{4}-?W\d{2}(?:-\d)?\b"
    rf"|{MONTH}\s+{_DAY}\b(?:,?\s+\d{{4}}\b)?|{_DAY_BEFORE}{_OF}{MONTH}{_YEAR}"
    rf"|{_DAY}-{MONTH}-\d{{2,4}}|{MONTH}\s+\d{{4}}\b|{_DAY}/{MONTH}/\d{{4}}"
    rf"|\d{{4}}\.?\s+{MONTH}\s+{_DAY}\b"
    r"|(?:19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?!\w))"
)
_TIME = (
    r"(?:\d{1,2}\.\d{2}(?=\s?(?:[AaPp]\.?[Mm]\b|Uhr\b))(?:\s?[AaPp]\.?[Mm]\b\.?)?|\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[AaPp][Mm]\b|\s?[AaPp]\.\s?[Mm]\b\.?)?"
    r"|\d{1,2}\s?[AaPp]\.?[Mm]\b\.?|\d{1,2}h\d{2}(?:m\d{2}s?)?)"
)
_EAST_TIME = (
    r"(?:(?:午前|午後|上午|下午|오전|오후)?\s?"
    r"(?:\d{1,2}\s?[时時点點시]\s?(?:\d{1,2}\s?[分분]\s?(?:\d{1,2}\s?[秒초])?|半)?"
    r"|\d{1,2}:\d{2}(?::\d{2})?))"
)
_EAST_DATE = (
    r"(?:(?:(?:令和|\d{2})\d{1,2}\s?[年년]\s?)?\d{1,2}\s?[月월]\s?\d{1,2}\s?[日일]"
    r"(?:\s?[（(][月火水木金土日一二三四五六월화수목금토일](?:曜日?|요일)?[)）])?)"
)
_EAST_WEEKDAY = r"(?:[月火水木金土日]曜日?|(?:星期|周|週|礼拜)[一二三四五六日天]|[월화수목금토일]요일)"
_EAST = (
    rf"(?:{_EAST_DATE}(?:\s?{_EAST_WEEKDAY})?(?:[\s、,]{{0,2}}{_EAST_TIME})?"
    rf"|{_EAST_WEEKDAY}(?:[\s、,]{{0,2}}{_EAST_TIME})?"
    r"|(?:午前|午後|上午|下午|오전|오후)\s?\d{1,2}[时時点點시:](?:\d{1,2}[分분]?)?"
    r"|\d{1,2}\s?[时時点點시]\s?\d{1,2}\s?[分분]\s?(?:\d{1,2}\s?[秒초])?)"
)
_COMPACT = (
    r"(?:(?:19|20)\d{6}[T_ -]?\d{6}Z?(?!\w)"
    rf"|(?:0[1-9]|[12]\d|3[01])(?:[01]\d|2[0-3])[0-5]\d\s?[A-Z]\s?{MONTH}\s?\d{{2}}(?!\w))"  # date-time group
)
_ZONE = (
    r"(?:\s?Z\b|\s?[+-]\d{2}:?\d{2}\b|\s\(?(?:UTC|GMT)(?:[+-]\d{1,2}(?::?\d{2})?)?\b\)?"
    r"|\s\(?(?:[ECMPAH][SD]?T|CES?T|EES?T|BST|IST|JST|KST|AES?T|[A-Z][a-z]+/[A-Z][A-Za-z_]+)\b\)?"
    r"|\sUhr\b|\s\d{4}\b)"  # asctime: Mon Mar  3 10:15:22 2025
)
_ATOM = rf"(?:{_EAST}|{_DATE}|{_TIME}|{_COMPACT}|{WEEKDAY})"
_LINK = r"at|on|of|the|de[nmr]?|le|el|il|um|à|às|a las|alle|kl\.?|klo|в|о|г\.,?"
_JOIN = rf"(?:T|,?\s+(?:{_LINK}|@|-|–|—|\||/)?\s*|,\s*|_|\s*[(\[]|\s*[@|–—·]\s*|-(?=\d{{1,2}}[:-]))"
MOMENT = re.compile(
    rf"(?<![^\W{EAST_ASIAN}]){_ATOM}(?:{_ZONE})?(?:{_JOIN}{_ATOM}[)\]]?(?:{_ZONE})?)*(?:{_ZONE})?"
)
"""A date, a time or both, with weekday and zone, in the ways people and libraries print them."""
_HAS_TIME = re.compile(rf"{_TIME}|{_COMPACT}|\d\s?[时時点點시]")
_EPOCH = re.compile(
    r"(?<![\w.])(?:1[4-9][0-9]{8}(?:\.\d{1,9})?|1[4-9][0-9]{11}|1[4-9][0-9]{14}|1[4-9][0-9]{17})(?![\w])"
)
"""Seconds to nanoseconds since 1970, from 2014 to 2033: most snowflakes and other ids are none."""

_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_NUMBER = re.compile(
    r"[-+#]?(?:[$€£¥]|USD |EUR )?\d[\d,_ ]*(?:\.\d+)?(?:\s?(?:%|[kKMG]i?B?|tokens?|ms|s|€))?"
    r"(?:\s?(?:/|of|von|de|sur|из|中)\s?\d[\d,_.]*\s?[kKM%]?)?"
)
_MEASURE = re.compile(r"[-+]?[$€£¥]?\d{1,3}(?:,\d{3})*(?:\.\d+)?%?|[-+]?[$€£¥]?\d*\.\d+%?|\d{1,4}/\d{1,4}")
"""An amount, as no identifier is printed: with a decimal point, commas, a share."""
LEAST_CODES = 4
"""Values without a digit from which it can be told that nobody wrote them."""
LONGEST_COUNT = 11
"""Digits; what is longer is an identifier, though it may rise."""


_BLOCKS = re.compile(
    r"(?:^[ \t]*|(?<=[:>] )|(?<=[:>]))(?:On branch |HEAD detached )[^\n]*"
    r"(?:\n(?!\n)[^\n]+|\n\n(?=[ \t]|Changes |Untracked ))*"
    r"|(?:^[ \t]*|(?<=[:>] )|(?<=[:>]))[0-9a-f]{7,40} [^\n]+(?:\n[ \t]*[0-9a-f]{7,40} [^\n]+)+"
    r"|^(?:export )?[A-Z][A-Z0-9_]*=[^\n]*(?:\n(?:export )?[A-Z][A-Z0-9_]*=[^\n]*)+"
    r"|^[ \t]*(?:[MADRCU]{1,2}|\?\?|!!) [\w./-][^\n]*(?:\n[ \t]*(?:[MADRCU]{1,2}|\?\?|!!) [^\n]+)+"
    r"|^[ \t│├└─|`+-]*[\w.@-]+(?:/|\.\w{1,6})(?:\n[ \t│├└─|`+-]*[\w.@-]+(?:/|\.\w{1,6}))+[ \t]*$",
    re.M,
)
"""Git status, git log in one line each, environment variables, short status, file trees: one value, though
its lines may agree."""


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
        sentence_ends = match[0].endswith(".") and not re.search(r"[AaPp]\.\s?[Mm]\.$", match[0])
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


def is_epoch(value: str) -> bool:
    """Seconds to nanoseconds since 1970 and nothing else."""
    return _EPOCH.fullmatch(value.strip()) is not None


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
    if not value or len(value) > 512 or not value.isascii() or re.search(r"\s", value):
        return False
    if _MEASURE.fullmatch(value):
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


def is_code(values: Sequence[str]) -> bool:
    """Capitals alone, as many in each of several values, fewer vowels than words have: drawn by chance."""
    codes = [value.strip() for value in values if value.strip()]
    if len(codes) < LEAST_CODES or any(re.fullmatch(r"[A-Z]{4,}", code) is None for code in codes):
        return False
    text = "".join(codes)
    return len({len(code) for code in codes}) == 1 and sum(c in "AEIOU" for c in text) < len(text) / 4


def _looks_random(core: str) -> bool:
    """Letters only: case changes inside a word, or hardly a vowel."""
    flips = sum(a.islower() and b.isupper() for a, b in pairwise(core))
    vowels = sum(c in "aeiouAEIOU" for c in core)
    return flips >= len(core) / 6 or vowels < len(core) / 6


def is_number(value: str) -> bool:
    """A count, a share, a size."""
    value = value.strip()
    return _NUMBER.fullmatch(value) is not None and re.search(rf"\d{{{LONGEST_COUNT + 1}}}", value) is None


def number(value: str) -> float | None:
    """The first number in `value`."""
    match = re.search(r"\d[\d,_]*(?:\.\d+)?", value)
    return float(match[0].replace(",", "").replace("_", "")) if match else None


def mostly(values: Sequence[str], test: object, part: float = 0.8) -> bool:
    """Whether `test` holds for at least `part` of the non-empty `values`."""
    assert callable(test)
    filled = [value for value in values if value.strip()]
    return bool(filled) and sum(map(bool, map(test, filled))) >= part * len(filled)
