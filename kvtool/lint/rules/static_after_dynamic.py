"""KV302 static-after-dynamic: long stable instructions behind a varying text."""

from kvtool.lint.corpus import Corpus
from kvtool.lint.rule import Docs, Sample
from kvtool.lint.samples import AGENT, chat
from kvtool.prompts.slots import Slot
from kvtool.report import Fix

STABLE = 200
"""Characters of stable text behind a slot that make it worth turning around."""
WORDS = 3

TASKS = (
    "Sort out a lost bag for a family.",
    "Rebook a flight that was cancelled.",
    "Explain why a refund is late.",
)


class StaticAfterDynamic:
    """Names slots of words, such as a task or a persona, with long stable text behind them."""

    code = "KV302"
    name = "static-after-dynamic"
    fix = Fix("report", safe=False)
    turns_round = True
    docs = Docs(
        what="Finds long text that never changes behind a text that does, such as a task or a persona.",
        why="The stable text is the same for all, but nobody can share it, because it does not come first.",
        instead="Turn the order around: instructions first, then what varies.",
        references=("getkimchi/kimchi#574",),
    )
    valid = (
        Sample(
            "instructions first",
            [chat(f"{AGENT}\n\nTask: {task}", [task], time=n) for n, task in enumerate(TASKS)],
        ),
    )
    invalid = (
        Sample(
            "the task first",
            [chat(f"{task}\n\n{AGENT}", ["Hi"], session=task, time=n) for n, task in enumerate(TASKS)],
            path="messages[0].content",
            slot=TASKS[0],
        ),
    )

    def claims(self, slot: Slot, corpus: Corpus) -> bool:
        """Wordy values and a long stable literal after them."""
        words = [len(value.split()) for value in slot.values() if value.strip()]
        return (
            bool(words)
            and sum(words) >= WORDS * len(words)
            and slot.stable_after() >= STABLE
            and slot.key[0] == "messages"
        )

    def message(self, slot: Slot, corpus: Corpus) -> str:
        """Says how much is stable."""
        return (
            f"{slot.stable_after():,} stable characters stand behind a text with {len(slot.values())} values"
        )


RULE = StaticAfterDynamic()
