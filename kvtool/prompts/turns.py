"""Turn to turn: what a request of a conversation changed in the history that it took over.

A clean step only adds messages behind those of the request before it. Everything else is a change:
messages that left, came in between, or stand there with another text.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from kvtool.prompts.conversations import bare
from kvtool.prompts.fields import Field, Prompt

REMEMBERED = 8
"""Latest requests of a conversation among which the one that a request continues is looked for."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One message as the prompt shows it. `id` is equal for equal role and texts."""

    id: int
    message: int
    role: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """removed: units [old] of the previous request are gone. added: units [new] came in between. replaced:
    unit old[0] stands there as unit new[0]. Indices count units."""

    kind: Literal["removed", "added", "replaced"]
    old: tuple[int, ...]
    new: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """Request `current` continues `previous`. `tail`: the message of `current` from which on all is new."""

    previous: int
    current: int
    changes: tuple[Change, ...]
    tail: int


class Turns:
    """Units of every prompt and the steps between them."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self._ids: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
        self._forms: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
        self._form: dict[int, int] = {}
        self.units: list[list[Unit]] = [self._units(prompt) for prompt in prompts]

    def _units(self, prompt: Prompt) -> list[Unit]:
        by_message: dict[int, list[Field]] = {}
        for field in prompt.conversation():
            by_message.setdefault(field.message, []).append(field)
        units = []
        for message, fields in by_message.items():
            key = (fields[0].role, tuple((field.part, field.text) for field in fields))
            id = self._ids.setdefault(key, len(self._ids))
            if id not in self._form:
                form = (fields[0].role, tuple((field.part, bare(field.text)) for field in fields))
                self._form[id] = self._forms.setdefault(form, len(self._forms))
            units.append(Unit(id, message, fields[0].role, tuple(fields)))
        return units

    def steps(self, order: Sequence[int], conversation: Sequence[int], agent: Sequence[int]) -> list[Step]:
        """One step for each request that continues an earlier one of its conversation and agent."""
        recent: dict[tuple[int, int], deque[int]] = {}
        steps = []
        for index in order:
            known = recent.setdefault((conversation[index], agent[index]), deque(maxlen=REMEMBERED))
            previous = self._continued(index, known)
            if previous is not None:
                steps.append(self._step(previous, index))
            known.append(index)
        return steps

    def _continued(self, index: int, known: Sequence[int]) -> int | None:
        """The one of `known` that shares most with `index`; the latest of equals, None without overlap.

        White space does not count, nor what was rewritten in its place: of a history that comes and goes in
        two forms, the latest state is continued.
        """
        ids = [unit.id for unit in self.units[index]]
        forms = Counter(self._form[id] for id in ids)
        best: tuple[tuple[int, int], int] | None = None
        for other in known:
            theirs = [unit.id for unit in self.units[other]]
            if len(ids) < len(theirs) and theirs[: len(ids)] == ids:
                if best is None:
                    best = ((0, 0), -1)  # it starts over from an earlier point: nothing is lost
                continue
            whole = ids[: len(theirs)] == theirs
            same = len(theirs) if whole else (Counter(ids) & Counter(theirs)).total()
            shared = same  # one message alone is no history that was read back: it begins a chat
            if not whole and len(ids) > 1:
                shared = (forms & Counter(self._form[id] for id in theirs)).total()
                if 2 * shared >= len(theirs):
                    shared = max(shared, self._in_place(index, other))
            overlap = (shared, same)
            if shared and (best is None or overlap >= best[0]):
                best = (overlap, other)
        if best is not None and best[1] < 0:
            return None
        if best is None and known and len(ids) > 1:
            latest = len(self.units[known[-1]])
            if latest == 1 or latest > max(
                len(ids), 3
            ):  # the first message was rewritten, or all were summed up
                return known[-1]
        return best[1] if best else None

    def _in_place(self, index: int, other: int) -> int:
        """Messages of `other` that `index` has at their places, or that it has rewritten there."""
        pairs = zip(self.units[index], self.units[other], strict=False)
        return sum(mine.role == theirs.role for mine, theirs in pairs)

    def _step(self, previous: int, current: int) -> Step:
        old, new = self.units[previous], self.units[current]
        a, b = [unit.id for unit in old], [unit.id for unit in new]
        changes: list[Change] = []
        last = min(len(a), len(b))  # units of `current` up to which the previous request reaches
        if b[: len(a)] != a:
            last = 0
            if len(b) > 1 and b[:-1] == a[: len(b) - 1]:  # a branch: another last message, nothing behind it
                return Step(previous, current, (), new[-1].message)
            matched = _slid(a, b) or SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
            for tag, i1, i2, j1, j2 in matched:
                if tag == "equal":
                    last = j2
                    continue
                while i1 < i2 and j1 < j2 and old[i1].role == new[j1].role:
                    changes.append(Change("replaced", (i1,), (j1,)))
                    i1, j1, last = i1 + 1, j1 + 1, j1 + 1
                if i1 < i2:
                    changes.append(Change("removed", tuple(range(i1, i2)), (j1,)))
                if j1 < j2 and i2 < len(a):
                    changes.append(Change("added", (i1,), tuple(range(j1, j2))))
                    last = j2
        tail = new[last - 1].message + 1 if last else new[0].message if new else 0
        return Step(previous, current, tuple(changes), tail)


def _slid(old: Sequence[int], new: Sequence[int]) -> list[tuple[str, int, int, int, int]]:
    """Opcodes where `new` is `old` without its first units, a pinned first one apart, and more; else none.

    Looked for by itself: in a window over messages that repeat, the longest match is not the shift.
    """
    for pinned in (0, 1):
        if old[:pinned] != new[:pinned]:
            continue
        for gone in range(1, len(old) - pinned):
            kept = len(old) - pinned - gone
            if old[pinned + gone :] == new[pinned : pinned + kept]:
                end = pinned + kept
                return [
                    ("equal", 0, pinned, 0, pinned),
                    ("delete", pinned, pinned + gone, pinned, pinned),
                    ("equal", pinned + gone, len(old), pinned, end),
                    ("insert", len(old), len(old), end, len(new)),
                ]
    return []
