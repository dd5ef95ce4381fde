"""How a slot's value moves: with the request, with the session, or in steps."""

from itertools import groupby

from kvtool.lint.corpus import Corpus
from kvtool.prompts.slots import Slot
from kvtool.prompts.values import number

VERSIONS, CONVERSATIONS = 3, 3
"""A text has at most so many versions, each seen in so many conversations, to count as deployed anew."""


def constant_in_sessions(slot: Slot, corpus: Corpus, part: float = 0.95) -> bool:
    """Whether the value stays from one request of a conversation to the next, nearly always.

    False where no conversation has two requests: there is no evidence that it would stay.
    """
    same, changed = _steps(slot, corpus)
    return same + changed > 0 and same >= part * (same + changed)


def changes_in_sessions(slot: Slot, corpus: Corpus, part: float = 0.5) -> bool:
    """Whether the value is another one at most steps of a conversation (or there are no steps to see)."""
    same, changed = _steps(slot, corpus)
    return changed >= part * (same + changed)


def drifts(slot: Slot, corpus: Corpus, part: float = 0.8) -> bool:
    """Whether numbers go one way, by less than they are, at most steps of conversations."""
    rises = falls = jumps = 0
    for before, after in steps(slot, corpus):
        old, new = number(before), number(after)
        if old is None or new is None:
            continue
        jumps += abs(new - old) > 10 * max(abs(old), 1)
        rises += new > old
        falls += new < old
    moved = rises + falls
    return moved > 0 and max(rises, falls) >= part * moved and jumps <= (1 - part) * moved


def unique_share(slot: Slot) -> float:
    """Distinct values per request that has one."""
    return len(slot.values()) / max(len(slot.places), 1)


def deployed(slot: Slot, corpus: Corpus) -> bool:
    """Whether the text was changed once or twice for good: later conversations all have the new one."""
    if not constant_in_sessions(slot, corpus) and corpus.has_steps(slot):
        return False
    values: dict[int, str] = {}
    for index in corpus.order:
        if index in slot.places:
            values.setdefault(corpus.conversation[index], slot.places[index].value)
    runs = [len(list(run)) for _, run in groupby(values.values())]
    return 2 <= len(runs) <= VERSIONS and len(runs) == len(slot.values()) and min(runs) >= CONVERSATIONS


def steps(slot: Slot, corpus: Corpus) -> list[tuple[str, str]]:
    """(value before, value after) at each step of a conversation; by order where no step is known."""
    places = slot.places
    linked = [(step.previous, step.current) for step in corpus.steps]
    pairs = [(places[old].value, places[new].value) for old, new in linked if old in places and new in places]
    if pairs:
        return pairs
    last: dict[int, str] = {}
    for index in corpus.order:
        if index in places:
            conversation = corpus.conversation[index]
            if conversation in last:
                pairs.append((last[conversation], places[index].value))
            last[conversation] = places[index].value
    return pairs


def _steps(slot: Slot, corpus: Corpus) -> tuple[int, int]:
    """(steps at which the value stayed, steps at which it changed), within conversations."""
    pairs = steps(slot, corpus)
    same = sum(before == after for before, after in pairs)
    return same, len(pairs) - same
