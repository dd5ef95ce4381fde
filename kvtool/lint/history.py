"""Breaks of the history: which rule a changed step belongs to, and what the log is without them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kvtool.lint.corpus import Corpus
from kvtool.lint.repair import Repair
from kvtool.lint.rule import Candidate, Rule
from kvtool.prompts.edits import Edit
from kvtool.prompts.turns import Change, Step, Unit
from kvtool.report import Fix
from kvtool.requests import Message

Place = tuple[int, str, str | None, int, int]
"""(request index, path, role, start, end)."""


@dataclass(frozen=True, slots=True)
class Break:
    """A step's changes that one rule claims. place: (request, path, role, start, end)."""

    step: Step
    changes: tuple[Change, ...]
    place: Place
    example: str


class _Fixable(Rule, Protocol):
    fix: Fix


@runtime_checkable
class HistoryRule(Rule, Protocol):
    """Claims changes of steps; of several that would, the one with the lowest `rank` gets it."""

    fix: Fix
    rank: int

    def claims_change(self, change: Change, step: Step, corpus: Corpus) -> bool:
        """Whether this rule's cause made the change."""
        ...

    def place(self, change: Change, step: Step, corpus: Corpus) -> Place:
        """Where a claimed change is to be seen."""
        ...

    def summary(self, breaks: list["Break"]) -> str:
        """One line for people."""
        ...


def old_unit(change: Change, step: Step, corpus: Corpus) -> Unit:
    """The first unit that a change took away."""
    return corpus.turns.units[step.previous][change.old[0]]


def new_unit(change: Change, step: Step, corpus: Corpus) -> Unit:
    """The first unit that a change brought."""
    return corpus.turns.units[step.current][change.new[0]]


def differing(old: str, new: str) -> tuple[int, int, int]:
    """(start, end in `old`, end in `new`) of the part in which two texts differ."""
    start, shortest = 0, min(len(old), len(new))
    while start < shortest and old[start] == new[start]:
        start += 1
    tail = 0
    while tail < shortest - start and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return start, len(old) - tail, len(new) - tail


def changed_place(change: Change, step: Step, corpus: Corpus) -> Place:
    """Where a replaced unit differs, in the current request."""
    old, new = old_unit(change, step, corpus), new_unit(change, step, corpus)
    before = {field.part: field.text for field in old.fields}
    for field in new.fields:
        if before.get(field.part) != field.text:
            start, _, end = differing(before.get(field.part, ""), field.text)
            offset = max(field.offset, 0)
            return step.current, field.path, field.role, offset + start, offset + end
    field = new.fields[0]
    return step.current, field.path, field.role, 0, len(field.text)


def unit_place(request: int, unit: Unit) -> Place:
    """All of a unit's longest text."""
    field = max(unit.fields, key=lambda one: len(one.text))
    return request, field.path, field.role, max(field.offset, 0), max(field.offset, 0) + len(field.text)


def append_only(corpus: Corpus, broken: Iterable[Step]) -> Repair:
    """The log in which the given steps keep the history as it was and only add what is new."""
    claimed = {step.current for step in broken}
    repair = Repair()
    whole: dict[int, list[Message]] = repair.messages
    for step in corpus.steps:
        if step.current not in claimed and (step.previous not in whole or step.changes):
            continue
        before = corpus.requests[step.previous].messages or []
        after = corpus.requests[step.current].messages or []
        history = whole.get(step.previous, before)[corpus.prompts[step.previous].head :]
        head = after[: corpus.prompts[step.current].head]
        whole[step.current] = [*head, *history, *after[step.tail :]]
    return repair


def without_messages(corpus: Corpus, gone: dict[int, set[int]]) -> Repair:
    """The log without messages `gone` (request -> message indices)."""
    repair = Repair()
    for index, indices in gone.items():
        messages = corpus.requests[index].messages or []
        repair.messages[index] = [m for number, m in enumerate(messages) if number not in indices]
    return repair


def history_candidate(
    rule: _Fixable,
    breaks: Sequence[Break],
    corpus: Corpus,
    repair: Repair,
    message: str,
    edits: Sequence[Edit] = (),
) -> Candidate:
    """One candidate for all breaks of a rule."""
    first = min(breaks, key=lambda one: one.place[0])
    examples = list(dict.fromkeys(one.example for one in breaks))
    requests = sorted({one.step.current for one in breaks})
    role = first.place[2]
    return Candidate(
        code=rule.code,
        name=rule.name,
        place=first.place,
        template=f"{role}: {{{rule.name}}}",
        key=str(role),
        message=message,
        examples=[example[:200] for example in examples[:3]],
        requests=requests,
        distinct=len(requests),
        fix=rule.fix,
        repair=repair,
        edits=list(edits),
    )
