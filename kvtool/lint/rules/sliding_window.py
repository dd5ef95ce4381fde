"""KV403 sliding-window: the oldest messages are dropped at every turn."""

from kvtool.lint.corpus import Corpus
from kvtool.lint.history import Break, Place, unit_place
from kvtool.lint.rule import Docs, Sample
from kvtool.lint.samples import dialogue, history
from kvtool.prompts.turns import Change, Step
from kvtool.report import Fix, plural


class SlidingWindow:
    """Claims steps whose history lacks the oldest messages and is otherwise the same."""

    code = "KV403"
    name = "sliding-window"
    rank = 5
    fix = Fix("report", safe=False)
    docs = Docs(
        what="Finds conversations that keep only their last messages, dropping the oldest ones turn by turn.",
        why="When the first message leaves, all others move up: nothing behind the system prompt is shared.",
        instead="Drop in large steps, half of the window at once, so that most turns share their history.",
        references=(
            "openclaw/openclaw#115273",
            "amd/gaia#3629",
            "HKUDS/nanobot#4568",
        ),
    )
    valid = (Sample("a growing history", dialogue([history(n) for n in (1, 2, 3, 4)])),)
    invalid = (
        Sample(
            "the last three messages",
            dialogue([history(n)[-3:] for n in (2, 3, 4)]),
            path="messages[1].content",
            slot="Can you see it on a map?",
        ),
    )

    def claims_change(self, change: Change, step: Step, corpus: Corpus) -> bool:
        """Messages left at the start (behind a pinned first one at most) and the rest stayed."""
        if any(one.kind != "removed" for one in step.changes):
            return False
        return change.old[0] <= 1 and change.old[-1] + 1 < len(corpus.turns.units[step.previous])

    def place(self, change: Change, step: Step, corpus: Corpus) -> Place:
        """The first message that moved up."""
        units = corpus.turns.units[step.current]
        return unit_place(step.current, units[min(change.new[0], len(units) - 1)])

    def summary(self, breaks: list[Break]) -> str:
        """Says how often."""
        return f"the oldest messages are dropped in {plural(len(breaks), 'step')}"


RULE = SlidingWindow()
