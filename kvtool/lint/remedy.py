"""From a named slot to what can be done about it: the counterfactual for its price, the edit for its cure."""

import re

from kvtool.lint.corpus import Corpus
from kvtool.lint.repair import Repair
from kvtool.lint.rule import Candidate, SlotRule
from kvtool.lint.spread import constant_in_sessions
from kvtool.prompts import paths
from kvtool.prompts.edits import FIRST_SENTENCE, TAIL_SENTENCE, SlotEdit, Target
from kvtool.prompts.slots import Slot

ANCHOR = 48
"""Characters of stable text that an edit looks for beside a value."""
LEAST_ANCHOR = 4
"""A shorter anchor inside a text is no landmark: the slot is reported and not edited."""
EDITABLE = ("system", "developer", "tools")
LONGEST_NOTE = 120
HEADINGS = 3
"""Lines above a block that may belong to it."""
LABEL = 80
"""Characters of stable text around a value that are taken for its label."""


def slot_candidate(rule: SlotRule, slot: Slot, corpus: Corpus) -> Candidate:
    """The candidate for a slot that `rule` claims."""
    values = slot.values()
    turned = slot.role not in EDITABLE and getattr(rule, "turns_round", False)
    repair = _turned_round(slot, corpus) if turned else _taken_out(slot)
    first = corpus.first([index for index, place in slot.places.items() if place.value])
    place = slot.places[first]
    optional = "" in values and bool(place.value.strip())  # what comes and goes brings its line end along
    lead = len(place.value) - len(place.value.lstrip()) if optional else 0
    trail = len(place.value) - len(place.value.rstrip()) if optional else 0
    edit = slot_edit(rule, slot, corpus)
    return Candidate(
        code=rule.code,
        name=rule.name,
        place=(first, place.path, slot.role, place.start + lead, place.end - trail),
        template=slot.template(rule.name),
        key=" ".join(map(str, slot.key)),
        message=rule.message(slot, corpus),
        examples=[value for value in values if value][:3],
        requests=sorted(slot.places),
        distinct=len(values),
        fix=rule.fix,
        repair=repair,
        edits=[edit] if edit else [],
        # two blocks of text that others could share; of a user's message only its first slot hides them
        always=slot.stable_after() >= 8 * corpus.block_size and (slot.role in EDITABLE or slot.number == 0),
    )


def _taken_out(slot: Slot) -> Repair:
    """The prompts without the slot's values: frozen to one for all, they would count as tokens saved."""
    repair = Repair()
    left, right = phrase(slot)
    for index, place in slot.places.items():
        if place.value:
            repair.texts[index].append((place.path, place.start - left, place.end + right, ""))
    return repair


def _turned_round(slot: Slot, corpus: Corpus) -> Repair:
    """The prompts with the slot's values, such as the user's task, behind the rest of their message."""
    repair = _taken_out(slot)
    for index, texts in repair.texts.items():
        request = corpus.requests[index]
        for path, start, end, _ in list(texts):
            body = {"messages": request.messages, "text": request.text}
            whole = paths.get(body, paths.parse(path))
            if isinstance(whole, str):
                texts.append((path, len(whole), len(whole), f"\n\n{whole[start:end].strip()}"))
    return repair


def phrase(slot: Slot) -> tuple[int, int]:
    """Characters before and behind a value that say what it is and would not be there without it.

    The rest of its line where that is short, else of its sentence; nothing where neither is.
    """
    if "" in slot.values():  # a block that comes and goes has no label of its own
        return 0, 0
    if any("\n" in value for value in slot.values()):
        return _heading(slot)
    line_before, line_after = slot.line()
    ends_line = "\n" in slot.after or slot.number == len(slot.skeleton.literals) - 2
    opens_line = "\n" in slot.before or slot.number == 0
    if ends_line and opens_line and len(line_before) + len(line_after) <= LABEL:
        return len(line_before), len(line_after) + ("\n" in slot.after)
    sentence_before = re.split(r"(?<=[.!?])\s+", line_before)[-1]
    ending = re.match(r"[^.!?\n]*[.!?]\s", line_after)
    whole = sentence_before != line_before or opens_line
    if ending is not None and whole and len(sentence_before) + ending.end() <= LABEL:
        return len(sentence_before), ending.end()
    return 0, 0


def _heading(slot: Slot) -> tuple[int, int]:
    """Characters before and behind a block of lines: the element around it, the heading above it."""
    before, after = slot.before, slot.after
    left, right = 0, 0
    for _ in range(HEADINGS):
        head, tail = before[: len(before) - left], after[right:]
        line = head.rstrip("\n").rsplit("\n", 1)[-1]
        if not line.strip() or len(line) > LABEL or not head.endswith("\n"):
            break
        tag = re.fullmatch(r"\s*<([\w-]+)[^<>]*>\s*", line)
        closing = tag and re.match(rf"\s*</{re.escape(tag[1])}>", tail)
        if closing:
            right += closing.end()
        elif tag or not (line.lstrip().startswith("#") or line.rstrip().endswith((":", "："))):
            break
        left += len(head) - len(head.rstrip("\n")) + len(line)
    return left, right


def slot_edit(rule: SlotRule, slot: Slot, corpus: Corpus) -> SlotEdit | None:
    """The normalizing edit for a slot, None where it would not be found again or has nothing to do."""
    if rule.fix.action in ("report", "canonicalize") or slot.role not in EDITABLE:
        return None
    last = len(slot.skeleton.literals) - 2
    at_start = slot.number == 0 and len(slot.before) <= ANCHOR
    at_end = slot.number == last and len(slot.after) <= ANCHOR
    before = slot.before if at_start else slot.before[-ANCHOR:]
    after = slot.after if at_end else slot.after[:ANCHOR]
    if not (at_start or len(before) >= LEAST_ANCHOR) or not (at_end or after):
        return None
    target: Target = "nowhere"
    leave = ""
    if rule.fix.action != "strip":
        target = "first-user" if constant_in_sessions(slot, corpus) else "tail"
        leave = FIRST_SENTENCE if target == "first-user" else TAIL_SENTENCE
    where = "system" if slot.key[0] == "messages" else f"tool {slot.key[1]}"
    part = str(slot.key[2]) if slot.key[0] == "tools" else ""
    return SlotEdit(
        rule.code,
        where,
        part,
        before,
        after,
        at_start,
        at_end,
        leave,
        target,
        _note(rule, slot),
        rule.fix.safe,
    )


def _note(rule: SlotRule, slot: Slot) -> tuple[str, str]:
    """The stable text of the slot's line, so that the value is understood where it is moved to."""
    before, after = slot.line()
    if len(before) > LONGEST_NOTE:
        before = before[-LONGEST_NOTE:].split(" ", 1)[-1]
    before = before.lstrip(" \t#*->.,;")
    if slot.key[0] == "tools":
        before = f"{slot.key[1]}: {before}"
    if not before:
        before = f"{rule.name}: "
    return before, after if len(after) <= 12 else ""
