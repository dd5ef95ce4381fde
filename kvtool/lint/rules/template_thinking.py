"""KV501 template-thinking: the chat template drops or adds the thinking of earlier turns."""

from kvtool.lint.corpus import Corpus
from kvtool.lint.history import Break, Place, new_unit, old_unit, unit_place
from kvtool.lint.rule import Docs, Sample
from kvtool.lint.samples import dialogue, history
from kvtool.prompts.turns import Change, Step
from kvtool.report import Fix


class TemplateThinking:
    """Claims messages that are the same in both requests and are printed differently."""

    code = "KV501"
    name = "template-thinking"
    rank = 0
    fix = Fix("report", safe=False)
    docs = Docs(
        what="Finds messages that the chat template prints differently once others follow.",
        why="Templates that strip the thinking of earlier turns change the history at every user message.",
        instead="Use the template's option that keeps thinking, or never send it.",
    )
    valid = (Sample("no thinking", dialogue([history(n) for n in (1, 2, 3)])),)
    invalid: tuple[Sample, ...] = ()  # needs a template that strips: tests/lint/test_template_thinking.py

    def claims_change(self, change: Change, step: Step, corpus: Corpus) -> bool:
        """The same message object in the request, another text in the prompt."""
        if change.kind != "replaced":
            return False
        old, new = old_unit(change, step, corpus), new_unit(change, step, corpus)
        before = corpus.requests[step.previous].messages or []
        after = corpus.requests[step.current].messages or []
        return before[old.message] == after[new.message]

    def place(self, change: Change, step: Step, corpus: Corpus) -> Place:
        """The message that changed."""
        return unit_place(step.current, new_unit(change, step, corpus))

    def summary(self, breaks: list[Break]) -> str:
        """Says how often."""
        return f"the chat template prints earlier messages differently in {len(breaks)} steps"


RULE = TemplateThinking()
