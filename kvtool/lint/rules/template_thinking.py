"""KV501 template-thinking: the chat template drops or adds the thinking of earlier turns."""

from kvtool.lint.corpus import Corpus
from kvtool.lint.history import Break, Place, new_unit, old_unit, unit_place
from kvtool.lint.repair import Repair
from kvtool.lint.rule import Docs, Sample
from kvtool.lint.samples import dialogue, history
from kvtool.prompts.turns import Change, Step
from kvtool.report import Fix, plural

CLOSE = "</think>"


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
        references=(
            "QwenLM/Qwen3#1826",
            "lmstudio-ai/mlx-engine#176",
        ),
    )
    valid = (Sample("no thinking", dialogue([history(n) for n in (1, 2, 3)])),)
    invalid: tuple[Sample, ...] = ()  # needs a template that strips: tests/lint/test_template_thinking.py

    def claims_change(self, change: Change, step: Step, corpus: Corpus) -> bool:
        """The same message object in the request, another text in the prompt."""
        if change.kind == "added":
            return False
        if change.kind == "removed" and len(change.old) > 1:
            return False
        old = old_unit(change, step, corpus)
        at = new_unit(change, step, corpus).message if change.kind == "replaced" else old.message
        if change.kind == "removed" and any(unit.message == at for unit in corpus.turns.units[step.current]):
            return False  # another message that reads the same is printed there
        before = corpus.requests[step.previous].messages or []
        after = corpus.requests[step.current].messages or []
        return at < len(after) and before[old.message] == after[at]

    def repair(self, breaks: list[Break], corpus: Corpus) -> Repair:
        """The log in which the thinking was never printed."""
        repair = Repair()
        for one in breaks:
            index = one.step.previous
            known = repair.messages.get(index, corpus.requests[index].messages or [])
            messages = list(known)
            at = old_unit(one.changes[0], one.step, corpus).message
            content = messages[at].get("content")
            if isinstance(content, str) and CLOSE in content:
                content = content.rsplit(CLOSE, 1)[1].lstrip("\n")
            messages[at] = {**messages[at], "content": content, "reasoning_content": None}
            repair.messages[index] = messages
        return repair

    def place(self, change: Change, step: Step, corpus: Corpus) -> Place:
        """The message that changed."""
        return unit_place(step.previous, old_unit(change, step, corpus))

    def summary(self, breaks: list[Break]) -> str:
        """Says how often."""
        return f"the chat template prints earlier messages differently in {plural(len(breaks), 'step')}"


RULE = TemplateThinking()
