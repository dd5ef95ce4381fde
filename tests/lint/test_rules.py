"""Every rule against its own samples: silent on the valid ones, exact on the invalid ones."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from kvtool.lint.check import find
from kvtool.lint.rule import Sample
from kvtool.lint.rules import RULES
from kvtool.prompts import paths
from kvtool.requests import Request
from kvtool.tokens import PromptEncoder

Read = Callable[[Sequence[dict[str, Any]]], list[Request]]
BLOCK_SIZE = 8
"""Tokens; small, so that samples can be."""


def samples(kind: str) -> Iterator[Any]:
    for name in RULES.names():
        rule = RULES.load(name)
        for sample in getattr(rule, kind):
            yield pytest.param(rule.code, sample, id=f"{rule.code}: {sample.title}")


@pytest.mark.parametrize(("code", "sample"), list(samples("valid")))
def test_silent_on_valid(code: str, sample: Sample, read: Read, encoder: PromptEncoder) -> None:
    findings = find(read(sample.rows), encoder, BLOCK_SIZE)
    assert [f for f in findings if f.code == code or f.severity != "info"] == []


@pytest.mark.parametrize(("code", "sample"), list(samples("invalid")))
def test_exact_on_invalid(code: str, sample: Sample, read: Read, encoder: PromptEncoder) -> None:
    findings = find(read(sample.rows), encoder, BLOCK_SIZE)
    assert [f.code for f in findings] == [code]
    place = findings[0].location
    assert place.path == sample.path
    if sample.slot:
        text = paths.get(sample.rows[place.row - 1], paths.parse(place.path))
        assert text[place.start : place.end] == sample.slot


def test_every_rule_says_what_it_is() -> None:
    rules = [RULES.load(name) for name in RULES.names()]
    assert [rule.name for rule in rules] == RULES.names()
    assert len({rule.code for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.valid
        assert rule.docs.what and rule.docs.why and rule.docs.instead
