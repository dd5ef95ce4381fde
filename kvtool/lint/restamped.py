"""Slots inside the history: messages that come back with one small value changed, such as a clock.

For each message of a conversation that some step replaced, its versions are aligned as instructions are.
Only versions that agree in most of their text are slots; the rest is a rewrite and belongs to the rules
of the history.
"""

from itertools import pairwise

from kvtool.lint.corpus import Corpus
from kvtool.prompts.alignment import align
from kvtool.prompts.fields import Field
from kvtool.prompts.slots import Place, Slot, widened
from kvtool.prompts.turns import Change, Step

MOSTLY_STABLE = 0.5
LONGEST = 200
"""Characters of a value; what is longer is a block, not a stamp."""

Versions = dict[tuple[int, int, int, str], dict[int, Field]]
"""(agent, conversation, message, part) -> request -> the field as it stood there."""


def restamped_slots(corpus: Corpus) -> list[tuple[Slot, set[tuple[Step, Change]]]]:
    """Slots of the history, each with the changes that it explains."""
    versions: Versions = {}
    causes: dict[tuple[int, int, int, str], set[tuple[Step, Change]]] = {}
    for step in corpus.steps:
        for change in step.changes:
            if change.kind != "replaced":
                continue
            old = corpus.turns.units[step.previous][change.old[0]]
            new = corpus.turns.units[step.current][change.new[0]]
            if old.message != new.message or [f.part for f in old.fields] != [f.part for f in new.fields]:
                continue
            for before, after in zip(old.fields, new.fields, strict=True):
                if before.text != after.text:
                    where = (
                        corpus.agent[step.current],
                        corpus.conversation[step.current],
                        new.message,
                        after.part,
                    )
                    found = versions.setdefault(where, {})
                    found[step.previous], found[step.current] = before, after
                    causes.setdefault(where, set()).add((step, change))
    slots = []
    for where, fields in versions.items():
        slots += [(slot, causes[where]) for slot in _slots(where[0], fields)]
    return slots


def _slots(agent: int, fields: dict[int, Field]) -> list[Slot]:
    texts = list(dict.fromkeys(field.text for field in fields.values()))
    skeleton = widened(align(texts), texts)
    found: dict[str, list[tuple[int, int]]] = {}
    for text in texts:
        gaps = skeleton.gaps(text)
        if gaps is None or skeleton.stable() < MOSTLY_STABLE * len(text):
            return []
        if any(end - start > LONGEST for start, end in gaps):
            return []
        found[text] = gaps
    role = next(iter(fields.values())).role
    slots = [
        Slot(agent, ("history", role), role, number, skeleton, before, after)
        for number, (before, after) in enumerate(pairwise(skeleton.literals))
    ]
    for index, field in fields.items():
        for slot, (start, end) in zip(slots, found[field.text], strict=True):
            offset = max(field.offset, 0)
            slot.places[index] = Place(field.path, offset + start, offset + end, field.text[start:end])
    return [slot for slot in slots if len(slot.values()) > 1 and all(slot.values())]
