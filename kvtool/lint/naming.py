"""From a log to candidates: every slot and every changed step goes to the first rule that claims it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from kvtool.lint.corpus import Corpus
from kvtool.lint.history import Break, HistoryRule, append_only, history_candidate
from kvtool.lint.remedy import slot_candidate
from kvtool.lint.repair import Repair
from kvtool.lint.restamped import restamped_slots
from kvtool.lint.rule import Candidate, CorpusRule, Rule, SlotRule
from kvtool.lint.rules import RULES
from kvtool.lint.spread import deployed
from kvtool.prompts.slots import Slot, inner_slots
from kvtool.prompts.turns import Change, Step

FIRST, LAST = ("KV401", "KV402"), "KV100"
"""Rules that look at how a slot comes and goes are asked first; the one that takes everything, last."""
COUNTS, IDS = "KV106", "KV103"
"""A number that drifts is a count before its many digits make it an identifier."""
VALUE_RULES = "KV10"
"""Code prefix of rules that know a value by its shape: only these name slots inside the history."""

FORM_RANK = 2
"""History rules up to this rank know a change by its form and go before the value rules."""


def all_rules() -> list[Rule]:
    """Every rule, in the order in which slots are offered."""
    rules = [RULES.load(name) for name in RULES.names()]
    return sorted(rules, key=lambda rule: (rule.code == LAST, rule.code not in FIRST, _turn(rule.code)))


def _turn(code: str) -> tuple[str, bool]:
    return (IDS, False) if code == COUNTS else (code, True)


def candidates(corpus: Corpus, rules: Iterable[Rule] | None = None) -> list[Candidate]:
    """Causes in `corpus`, one candidate per cause: the same slot template at the same field is one."""
    return _merged(_named(corpus, list(all_rules() if rules is None else rules)))


def _named(corpus: Corpus, rules: list[Rule]) -> Iterator[Candidate]:
    slot_rules = [rule for rule in rules if isinstance(rule, SlotRule)]
    forms = [rule for rule in rules if isinstance(rule, HistoryRule) and rule.rank <= FORM_RANK]
    for slot in [*corpus.slots, *_unformed(corpus, forms)]:
        for named, part in _claims(slot, slot_rules, corpus):
            yield slot_candidate(named, part, corpus)
    explained: set[tuple[Step, Change]] = set()
    opened = {slot.agent for slot in corpus.openings}
    for stamp, causes in restamped_slots(corpus):
        if any(rule.claims_change(change, step, corpus) for step, change in causes for rule in forms):
            continue
        if stamp.agent in opened and any(step_opens(corpus, step, change) for step, change in causes):
            explained |= causes
            continue
        for named in slot_rules:
            if _knows_values(named) and named.claims(stamp, corpus):
                explained |= causes
                yield slot_candidate(named, stamp, corpus)
                break
    for rule in rules:
        if isinstance(rule, CorpusRule):
            yield from rule.candidates(corpus)
    yield from _broken_histories(corpus, rules, explained)


def _claims(slot: Slot, rules: list[SlotRule], corpus: Corpus) -> list[tuple[SlotRule, Slot]]:
    """The rule that claims `slot`; rules for what varies in it where only some requests have its text."""
    named = next((rule for rule in rules if rule.claims(slot, corpus)), None)
    if named is None or named.code in FIRST or _knows_values(named):
        return [] if named is None else [(named, slot)]
    if deployed(slot, corpus):
        return []  # a new version of the prompt costs its cache once
    parts = inner_slots(slot)
    values = [rule for rule in rules if _knows_values(rule)]
    inner = [
        (rule, part)
        for part in parts
        if (rule := next((rule for rule in values if rule.claims(part, corpus)), None)) is not None
    ]
    return inner if inner and len(inner) == len(parts) else [(named, slot)]


def _unformed(corpus: Corpus, forms: list[HistoryRule]) -> Iterator[Slot]:
    """Slots of first messages without the requests whose first message only changed its form."""
    changed = {
        step.current
        for step in corpus.steps
        for change in step.changes
        if change.kind == "replaced" and step_opens(corpus, step, change)
        if any(rule.claims_change(change, step, corpus) for rule in forms)
    }
    for slot in corpus.openings:
        kept = {index: place for index, place in slot.places.items() if index not in changed}
        part = replace(slot, places=kept) if len(kept) < len(slot.places) else slot
        if len(part.values()) > 1:
            yield part


def _knows_values(rule: Rule) -> bool:
    return rule.code.startswith(VALUE_RULES) and rule.code != LAST


def step_opens(corpus: Corpus, step: Step, change: Change) -> bool:
    """Whether the changed message is the first one after the instructions."""
    unit = corpus.turns.units[step.current][change.new[0]]
    return unit.message == corpus.prompts[step.current].head


def _broken_histories(
    corpus: Corpus, rules: list[Rule], explained: set[tuple[Step, Change]]
) -> Iterator[Candidate]:
    history_rules = sorted(
        (rule for rule in rules if isinstance(rule, HistoryRule)), key=lambda rule: rule.rank
    )
    breaks: dict[str, list[Break]] = {}
    for step in corpus.steps:
        for change in step.changes:
            if (step, change) in explained:
                continue
            for rule in history_rules:
                if rule.claims_change(change, step, corpus):
                    place = rule.place(change, step, corpus)
                    example = _text_at(corpus, place)
                    breaks.setdefault(rule.code, []).append(Break(step, (change,), place, example))
                    break
    for rule in history_rules:
        found = breaks.get(rule.code)
        if found:
            candidate = history_candidate(
                rule, found, corpus, _repair(rule, found, corpus), rule.summary(found)
            )
            is_habit = getattr(rule, "is_habit", None)
            candidate.always = is_habit is not None and is_habit(found)
            yield candidate


def _repair(rule: HistoryRule, breaks: list[Break], corpus: Corpus) -> Repair:
    own = getattr(rule, "repair", None)
    if own is not None:
        repaired: Repair = own(breaks, corpus)
        return repaired
    return append_only(corpus, [one.step for one in breaks])


def _text_at(corpus: Corpus, place: tuple[int, str, str | None, int, int]) -> str:
    index, path, _, start, end = place
    for field in corpus.prompts[index].fields:
        if field.path == path:
            offset = max(field.offset, 0)
            return field.text[start - offset : end - offset]
    return ""


def _merged(found: Iterable[Candidate]) -> list[Candidate]:
    merged: dict[tuple[str, str, str], Candidate] = {}
    for candidate in found:
        key = (candidate.code, candidate.key, candidate.template)
        known = merged.setdefault(key, candidate)
        if known is not candidate:
            known.repair.merge(candidate.repair)
            known.requests = sorted({*known.requests, *candidate.requests})
            known.distinct += candidate.distinct
            known.edits += candidate.edits
            known.place = min(known.place, candidate.place)
    return list(merged.values())
