"""What a rule is. A rule's file carries its documentation and its samples, which are its tests.

A slot rule claims a varying span of an agent's instructions; the first one that claims it names it.
A corpus rule looks for a structural cause itself. Neither computes a price: see price.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from kvtool.lint.corpus import Corpus
from kvtool.lint.repair import Repair
from kvtool.prompts.edits import Edit
from kvtool.prompts.slots import Slot
from kvtool.report import Fix


@dataclass(frozen=True, slots=True)
class Docs:
    """A rule's page: what it does, why it costs, what to do instead, public reports of it.

    references: issues and pull requests as owner/repository#number.
    """

    what: str
    why: str
    instead: str
    references: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """A small log: rows in OpenAI chat form (messages, tools, session, time in seconds).

    `slot` is, for an invalid sample, the text that the finding must point at ("" where it points at a
    whole list), `path` the path it must name.
    """

    title: str
    rows: Sequence[dict[str, Any]]
    path: str = ""
    slot: str = ""


@dataclass(slots=True)
class Candidate:
    """A cause without its price. `place` is (request index, path, role, start, end).

    always: reported even where a repair gains nothing, as information.
    """

    code: str
    name: str
    place: tuple[int, str, str | None, int, int]
    template: str
    key: str
    message: str
    examples: list[str]
    requests: list[int]
    distinct: int
    fix: Fix
    repair: Repair
    edits: list[Edit] = field(default_factory=list)
    always: bool = False


class Rule(Protocol):
    """What every rule says about itself."""

    code: str
    name: str
    docs: Docs

    @property
    def valid(self) -> Sequence[Sample]:
        """Logs on which the rule is silent."""
        ...

    @property
    def invalid(self) -> Sequence[Sample]:
        """Logs in which it finds one cause."""
        ...


@runtime_checkable
class SlotRule(Rule, Protocol):
    """Names slots."""

    fix: Fix

    def claims(self, slot: Slot, corpus: Corpus) -> bool:
        """Whether this rule's cause made the slot vary."""
        ...

    def message(self, slot: Slot, corpus: Corpus) -> str:
        """One line for people."""
        ...


@runtime_checkable
class CorpusRule(Rule, Protocol):
    """Finds its own causes."""

    def candidates(self, corpus: Corpus) -> Iterable[Candidate]:
        """Causes, most costly first where it can tell."""
        ...
