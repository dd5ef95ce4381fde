"""KV401 ephemeral-block: a reminder that is there in one call and gone in the next."""

from collections import Counter

from kvtool.lint.corpus import Corpus
from kvtool.lint.history import Break, Place, differing, new_unit, old_unit, unit_place, without_messages
from kvtool.lint.repair import Repair
from kvtool.lint.rule import Docs, Sample
from kvtool.lint.samples import QUESTIONS, dialogue, history
from kvtool.lint.spread import constant_in_sessions
from kvtool.prompts.fields import split_path
from kvtool.prompts.slots import Slot
from kvtool.prompts.turns import Change, Step
from kvtool.prompts.values import moments
from kvtool.report import Fix, plural

SHORTEST = 12
"""Characters of a block."""
HABIT = 4
"""Steps at which a block must come or go in the same words to be reported whatever it costs."""
OWN_ROLES = ("user", "system", "developer")
REMINDER = "<reminder>Keep the list of open tasks up to date and do not mention this.</reminder>"


class EphemeralBlock:
    """Claims blocks that come and go, as messages of their own or inside one."""

    code = "KV401"
    name = "ephemeral-block"
    rank = 4
    fix = Fix("report", safe=False)
    docs = Docs(
        what="Finds reminders and notes that stand in one request and not in the next.",
        why="From the block on, the next request shares nothing with this one.",
        instead="Leave a block where it was said first, or say it behind the last message only.",
        references=(
            "anthropics/claude-agent-sdk-typescript#269",
            "alvinunreal/oh-my-opencode-slim#790",
        ),
    )
    valid = (
        Sample(
            "it stays in place",
            dialogue([[f"{QUESTIONS[0]} {REMINDER}", *history(n)[1:]] for n in (1, 2, 3)]),
        ),
    )
    invalid = (
        Sample(
            "a reminder in the first message, now and then",
            dialogue(
                [[QUESTIONS[0] + ("\n" + REMINDER if n == 3 else ""), *history(n)[1:]] for n in (2, 3, 4, 5)]
            ),
            path="messages[1].content",
            slot=REMINDER,
        ),
    )

    def claims_change(self, change: Change, step: Step, corpus: Corpus) -> bool:
        """A message of the framework's own, or a stretch of one, that is there or not."""
        if change.kind == "replaced":
            return self._stretch(change, step, corpus) is not None
        unit = old_unit(change, step, corpus) if change.kind == "removed" else new_unit(change, step, corpus)
        if len(change.old if change.kind == "removed" else change.new) != 1 or unit.role not in OWN_ROLES:
            return False
        return (
            change.kind == "added"
            or unit.id in corpus.brought
            or (len(step.changes) == 1 and change.old[0] > 1)
        )

    def claims(self, slot: Slot, corpus: Corpus) -> bool:
        """In instructions: one text, there or not."""
        filled = [value for value in slot.values() if value.strip()]
        if constant_in_sessions(slot, corpus):
            return False
        return len(filled) < len(slot.values()) and len(filled) == 1 and len(filled[0]) >= SHORTEST

    def place(self, change: Change, step: Step, corpus: Corpus) -> Place:
        """The block, in the request that has it."""
        if change.kind == "removed":
            return unit_place(step.previous, old_unit(change, step, corpus))
        if change.kind == "added":
            return unit_place(step.current, new_unit(change, step, corpus))
        stretch = self._stretch(change, step, corpus)
        assert stretch is not None
        return stretch

    def message(self, slot: Slot, corpus: Corpus) -> str:
        """Says how often."""
        return f"a block in the {slot.role} prompt is there in some requests and gone in others"

    def repair(self, breaks: list[Break], corpus: Corpus) -> Repair:
        """The log without the blocks."""
        gone: dict[int, set[int]] = {}
        repair = Repair()
        for one in breaks:
            request, path, _, _, _ = one.place
            change = one.changes[0]
            if change.kind == "replaced":
                old, new = old_unit(change, one.step, corpus), new_unit(change, one.step, corpus)
                here, there = (old, new) if request == one.step.previous else (new, old)
                for field, other in zip(here.fields, there.fields, strict=True):
                    if field.path == path:
                        offset = max(field.offset, 0)
                        repair.texts[request].append((path, offset, offset + len(field.text), other.text))
            else:
                gone.setdefault(request, set()).add(split_path(path)[0])
        for index, messages in without_messages(corpus, gone).messages.items():
            repair.messages[index] = messages
        return repair

    def summary(self, breaks: list[Break]) -> str:
        """Says how often."""
        return f"a block comes or goes in {plural(len(breaks), 'step')}"

    @staticmethod
    def is_habit(breaks: list[Break]) -> bool:
        """One block again and again: worth a word even where it stands last and costs only itself."""
        openings = Counter(one.example.strip()[:SHORTEST] for one in breaks if not moments(one.example))
        return bool(openings) and openings.most_common(1)[0][1] >= HABIT

    @staticmethod
    def _stretch(change: Change, step: Step, corpus: Corpus) -> Place | None:
        """Where a block stands inside a user or system message whose other version lacks it."""
        old, new = old_unit(change, step, corpus), new_unit(change, step, corpus)
        if old.role not in OWN_ROLES or len(old.fields) != len(new.fields):
            return None
        found = None
        for before, after in zip(old.fields, new.fields, strict=True):
            if before.text == after.text:
                continue
            start, old_end, new_end = differing(before.text, after.text)
            if found is not None or (start < old_end and start < new_end):
                return None
            request, field, end = (
                (step.previous, before, old_end) if start < old_end else (step.current, after, new_end)
            )
            block = field.text[start:end]
            if len(block.strip()) < SHORTEST:
                return None
            shift = _aligned(field.text, start, end)
            start, end = start - shift, end - shift
            block = field.text[start:end]
            start += len(block) - len(block.lstrip())
            end -= len(block) - len(block.rstrip())
            offset = max(field.offset, 0)
            found = (request, field.path, field.role, offset + start, offset + end)
        return found


def _aligned(text: str, start: int, end: int) -> int:
    """How far a block can be moved left, without changing the text, to begin with a line or a tag."""
    for shift in range(min(start, 80) + 1):
        if shift and text[start - shift] != text[end - shift]:
            break
        if start == shift or text[start - shift - 1] == "\n" or text[start - shift] in "<[\n":
            return shift
    return 0


RULE = EphemeralBlock()
