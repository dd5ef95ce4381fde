"""KV404 history-rewrite: earlier messages compacted, replaced or cut."""

from kvtool.lint.corpus import Corpus
from kvtool.lint.history import Break, Place, changed_place, new_unit, unit_place
from kvtool.lint.rule import Docs, Sample
from kvtool.lint.samples import ANSWERS, QUESTIONS, dialogue, history
from kvtool.prompts.turns import Change, Step
from kvtool.report import Fix, plural


class HistoryRewrite:
    """Claims what no other rule of the history claims."""

    code = "KV404"
    name = "history-rewrite"
    rank = 9
    fix = Fix("report", safe=False)
    docs = Docs(
        what="Finds earlier messages that come back with another text: summaries, pruned results.",
        why="Everything behind the first changed message is computed again, at every such step.",
        instead="Rewrite rarely and much at once; a history that only grows is shared from turn to turn.",
        references=(
            "openclaw/openclaw#111085",
            "LibreChat-AI/agents#497",
        ),
    )
    valid = (
        Sample("a growing history", dialogue([history(n) for n in (1, 2, 3, 4)])),
        Sample("another last question", dialogue([history(2), [*history(2)[:-1], "Is it lost?"]])),
    )
    invalid = (
        Sample(
            "an answer replaced by a note",
            dialogue([history(2), history(3), [QUESTIONS[0], "[old answer removed]", *history(4)[2:]]]),
            path="messages[2].content",
            slot="[old answer removed]",
        ),
        Sample(
            "a summary of the beginning",
            dialogue([history(4), [f"Summary: {QUESTIONS[0]} In Chicago.", ANSWERS[3], QUESTIONS[4]]]),
            path="messages[1].content",
        ),
    )

    def claims_change(self, change: Change, step: Step, corpus: Corpus) -> bool:
        """Everything but another last message, behind which nothing could have been shared."""
        return change.kind == "added" or change.old[0] < len(corpus.turns.units[step.previous]) - 1

    def place(self, change: Change, step: Step, corpus: Corpus) -> Place:
        """The changed text."""
        if change.kind == "replaced":
            where = changed_place(change, step, corpus)
            unit = new_unit(change, step, corpus)
            if 2 * (where[4] - where[3]) > sum(len(field.text) for field in unit.fields):
                return unit_place(step.current, unit)  # another text altogether
            return (
                where
                if where[3] < where[4]
                else unit_place(step.current, corpus.turns.units[step.current][change.new[0]])
            )
        units = corpus.turns.units[step.current]
        return unit_place(step.current, units[min(change.new[0], len(units) - 1)])

    def summary(self, breaks: list[Break]) -> str:
        """Says how often."""
        return f"earlier messages are rewritten in {plural(len(breaks), 'step')}"


RULE = HistoryRewrite()
