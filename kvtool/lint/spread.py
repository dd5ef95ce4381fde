"""How a slot's value moves: with the request, with the session, or in steps."""

from kvtool.lint.corpus import Corpus
from kvtool.prompts.slots import Slot
from kvtool.prompts.values import number


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
    last: dict[int, float] = {}
    rises = falls = jumps = 0
    for index in corpus.order:
        place = slot.places.get(index)
        value = None if place is None else number(place.value)
        if value is None:
            continue
        conversation = corpus.conversation[index]
        if conversation in last:
            change = value - last[conversation]
            jumps += abs(change) > 10 * max(abs(last[conversation]), 1)
            rises += change > 0
            falls += change < 0
        last[conversation] = value
    steps = rises + falls
    return steps > 0 and max(rises, falls) >= part * steps and jumps <= (1 - part) * steps


def unique_share(slot: Slot) -> float:
    """Distinct values per request that has one."""
    return len(slot.values()) / max(len(slot.places), 1)


def _steps(slot: Slot, corpus: Corpus) -> tuple[int, int]:
    """(steps at which the value stayed, steps at which it changed), within conversations."""
    last: dict[int, str] = {}
    same = changed = 0
    for index in corpus.order:
        place = slot.places.get(index)
        if place is None:
            continue
        conversation = corpus.conversation[index]
        if conversation in last:
            if last[conversation] == place.value:
                same += 1
            else:
                changed += 1
        last[conversation] = place.value
    return same, changed
