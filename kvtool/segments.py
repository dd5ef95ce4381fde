"""Where a prompt may be cut so that its pieces tokenize like the whole, decided for each tokenizer at load.

Tokenizers first look for their added tokens and then treat what lies between as texts of their own, so a cut
at a special token changes nothing; nor does one at a line end, if no token spans it. What speaks against
either can mostly be read off the tokenizer (a special token that is only found in lower case, an added token
that takes the white space before it); all else shows on probes, which are encoded whole and in pieces.
"""

import re
from collections.abc import Iterator
from typing import Any

SPACE = r"[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*"
"""What added tokens with lstrip or rstrip take; Unicode's White_Space, which is less than Python's \\s."""

LINE = re.compile(r"(?<=\S\n)(?=\S)")
"""Between a line end and the next line; not beside other white space, which tokenizers take together."""

_SPANNING = re.compile(r"[\nĊ][^\s▁ĊčĉĠ]")
"""A line end and what follows it in one token; byte-level vocabularies print the former as Ċ."""

_UNKNOWN = "\U0010fffd"
"""A character that no vocabulary has: some tokenizers melt neighbours they do not know into one token."""

_BORDERS = ["", " ", "\n", "a", " a", "\n\nb ", "1", "é", "\u3000x", "don't", '{"a": 1}', "  \t", "\r\n"]
_ENDS = ["a", "1", ".", "'", "é", "漢", '"}', "->", "A", "_", "#", "🙂", "x  y", "don", _UNKNOWN]
_STARTS = [*_ENDS, "'s", "- ", "{", "\u0301", "</a>", "\u200b", "word " * 60]


def special_cuts(backend: Any) -> re.Pattern[str] | None:
    """Matches the special tokens at which prompts are cut, with the white space they take (so that `split`
    gives them too); None where no cut is safe. backend: a `tokenizers.Tokenizer`."""
    added = list(backend.get_added_tokens_decoder().values())
    lowered = backend.normalizer is not None
    plain = [one for one in added if one.special and not one.single_word and not (one.normalized and lowered)]
    names = _undisturbed({one.content for one in plain}, {one.content for one in added})
    plain = sorted((one for one in plain if one.content in names), key=lambda one: -len(one.content))
    if not plain:
        return None
    parts = [
        (SPACE if one.lstrip else "") + re.escape(one.content) + (SPACE if one.rstrip else "")
        for one in plain
    ]
    pattern = re.compile("(" + "|".join(parts) + ")")
    return pattern if _same(backend, pattern, _special_probes([one.content for one in plain])) else None


def line_cuts(backend: Any) -> re.Pattern[str] | None:
    """Matches where long pieces are cut into lines; None where that might change their ids.

    No token may span a cut, so merges cannot; what else looks across it is a pattern, and is probed.
    """
    added = backend.get_added_tokens_decoder().values()
    newlines = [token for token in backend.get_vocab(True) if "\n" in token or "Ċ" in token]
    if any(_SPANNING.search(token) for token in newlines) or any(one.lstrip for one in added):
        return None
    probes = (f"{start}b {end}\n{start} c{end}\n{start}" for end in _ENDS for start in _STARTS)
    return LINE if _same(backend, LINE, probes) else None


def _undisturbed(names: set[str], added: set[str]) -> set[str]:
    """Those of `names` that no other added token contains or begins before, ending within them."""
    heads = {name[:end] for name in names for end in range(1, len(name))}
    disturbed = set()
    for other in added - names:
        disturbed |= {name for name in names if name in other}
        tails = tuple(other[start:] for start in range(1, len(other)) if other[start:] in heads)
        disturbed |= {name for name in names if tails and name.startswith(tails)}
    return names - disturbed


def _special_probes(specials: list[str]) -> Iterator[str]:
    turn = 0
    for left in _BORDERS:
        for right in _BORDERS:
            one, other = specials[turn % len(specials)], specials[-turn % len(specials)]
            yield f"{left}{one}{right}{other}{left} {right}"
            turn += 1


def _same(backend: Any, cut: re.Pattern[str], probes: Iterator[str]) -> bool:
    """Whether the pieces' ids are those of the whole, on every probe."""
    return all(
        backend.encode(text, add_special_tokens=False).ids
        == [
            token
            for piece in cut.split(text)
            for token in backend.encode(piece, add_special_tokens=False).ids
        ]
        for text in probes
    )
