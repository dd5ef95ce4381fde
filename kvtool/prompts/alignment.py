"""Alignment of many variants of one string: the text they all share, and the gaps where they differ.

A skeleton is a list of literals with one gap between each pair: value = L0 gap L1 gap ... Lk. It starts
as the first variant, without gaps; a variant that the literals do not fit is diffed against it and cuts
them where it differs. Variants that fit cost one substring search per literal, so thousands of prompts
with a clock in them align in milliseconds.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from typing import TypeVar

from kvtool.prompts.values import EAST_ASIAN

T = TypeVar("T")

_TOKEN = re.compile(rf"\n|[^\S\n]*(?:[{EAST_ASIAN}]|[^\W{EAST_ASIAN}]+|[^\w\s])|[^\S\n]+")
SAMPLES = 40
"""Variants that shape a skeleton; the others are only fitted to it."""
ROUNDS = 3
LARGE = 4_000_000
"""Product of token counts above which a diff is made by lines instead of words."""
LEAST_SHARED = 0.2
"""A variant that shares less than this part of the shorter text is another text, not a variant."""
KEEP_LITERAL = 24
"""Characters that make a literal between two gaps more than a coincidence."""


@dataclass(frozen=True, slots=True)
class Skeleton:
    """`literals[0]` starts every variant, `literals[-1]` ends it; the others are found in order."""

    literals: tuple[str, ...]

    def gaps(self, value: str) -> list[tuple[int, int]] | None:
        """[start, end) of each gap in `value`, or None where the literals do not fit."""
        first, last = self.literals[0], self.literals[-1]
        if len(self.literals) == 1:
            return [] if value == first else None
        end = len(value) - len(last)
        if not value.startswith(first) or not value.endswith(last) or end < len(first):
            return None
        found = []
        position = len(first)
        for literal in self.literals[1:-1]:
            at = value.find(literal, position, end)
            if at < 0:
                return None
            found.append((position, at))
            position = at + len(literal)
        found.append((position, end))
        return found

    def stable(self) -> int:
        """Characters that every variant shares."""
        return sum(map(len, self.literals))


def align(values: Sequence[str]) -> Skeleton:
    """Skeleton of distinct `values`, at least one. Those that share too little are left out of it."""
    skeleton = Skeleton((values[0],))
    pending: Sequence[str] = values[1:]
    for _ in range(ROUNDS):
        for value in spread(pending, SAMPLES):
            if skeleton.gaps(value) is None:
                skeleton = _refined(skeleton, value, values[0]) or skeleton
        left = [value for value in pending if skeleton.gaps(value) is None]
        if not left or len(left) == len(pending):
            break
        pending = left
    return skeleton


def spread(values: Sequence[T], most: int) -> Sequence[T]:
    """At most `most` of `values`, evenly spaced, the last one among them."""
    if len(values) <= most:
        return values
    return [values[(index + 1) * len(values) // most - 1] for index in range(most)]


def _refined(skeleton: Skeleton, value: str, known: str) -> Skeleton | None:
    """`skeleton`, which fits `known`, cut until `value` fits; None when too little would be left."""
    words: list[str] = []
    for number, literal in enumerate(skeleton.literals):
        if number:
            words.append("\0gap")  # differs from every word, since words never hold a NUL and a letter
        words.extend(_TOKEN.findall(literal))
    others = _TOKEN.findall(value)
    literals = _common_runs(words, others)
    whole = min(len(value), skeleton.stable())
    literals = _without_coincidences(literals, (known, value))
    if sum(map(len, literals)) < LEAST_SHARED * whole:
        return None
    return Skeleton(tuple(literals))


def _common_runs(a: list[str], b: list[str]) -> list[str]:
    """Runs of words that `a` and `b` share, in order; the first starts both, the last ends both."""
    shortest = min(len(a), len(b))
    head = 0
    while head < shortest and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < shortest - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    middle_a, middle_b = a[head : len(a) - tail], b[head : len(b) - tail]
    runs = ["".join(a[:head])]
    if len(middle_a) * len(middle_b) > LARGE:
        middle_a, middle_b = _lines(middle_a), _lines(middle_b)
    matcher = SequenceMatcher(None, middle_a, middle_b, autojunk=False)
    runs += ["".join(middle_a[m.a : m.a + m.size]) for m in matcher.get_matching_blocks() if m.size]
    runs.append("".join(a[len(a) - tail :]))
    return runs


def _lines(words: list[str]) -> list[str]:
    """Words joined into lines; a gap mark stays alone."""
    lines: list[str] = []
    fresh = True
    for word in words:
        if fresh or word == "\0gap" or word.startswith("\n"):
            lines.append(word)
        else:
            lines[-1] += word
        fresh = word == "\0gap"
    return lines


def _without_coincidences(literals: list[str], texts: Sequence[str]) -> list[str]:
    """Drop inner literals too small to mean anything between the gaps beside them."""
    while True:
        skeleton = Skeleton(tuple(literals))
        found = [gaps for text in texts if (gaps := skeleton.gaps(text)) is not None]
        if (
            len(found) < len(texts) and len(literals) > 2
        ):  # a short literal was found too early; the longest ones are the safe anchors
            inner = literals[1:-1]
            shortest = min(range(len(inner)), key=lambda index: len(inner[index]))
            literals = [literals[0], *inner[:shortest], *inner[shortest + 1 :], literals[-1]]
            continue
        widths = [max(end - start for start, end in ends) for ends in zip(*found, strict=True)]
        blocks = [
            any("\n" in text[start:end].strip() for text, (start, end) in zip(texts, ends, strict=False))
            for ends in zip(*found, strict=True)
        ]
        for index, (left, right) in enumerate(pairwise(widths), start=1):
            in_block = blocks[index - 1] and blocks[index]
            if not _meaningful(literals[index], left, right, in_block):
                del literals[index]
                break
        else:
            return literals


def _meaningful(literal: str, left: int, right: int, in_block: bool) -> bool:
    if in_block:  # between varying lines, lines that happen to agree
        return len(literal) >= 0.5 * (left + right)
    if len(literal) >= KEEP_LITERAL:
        return len(literal) >= 0.05 * min(left, right)
    if re.search(r"\n\W*\w{3}", literal):  # the label that opens the next line
        return len(literal) >= 0.1 * min(left, right)
    return len(literal) >= 0.125 * (left + right) and re.search(r"[^\W\d_]{3}", literal) is not None
