"""KV405 call-id: tool call ids made anew at every turn, where the template prints them."""

import re

from kvtool.lint.corpus import Corpus
from kvtool.lint.history import Break, Place, changed_place, new_unit, old_unit
from kvtool.lint.rule import Docs, Sample
from kvtool.lint.samples import dialogue, history
from kvtool.prompts.turns import Change, Step
from kvtool.report import Fix, plural

_ID = re.compile(r"\b(?:call|toolu|tool|fc|chatcmpl)[_-]?[A-Za-z0-9_-]{6,}\b|\b[0-9a-f]{8}-[0-9a-f-]{27}\b")

OLD = ["Where is it?", "Looking it up. [call_a81f22c0] The scanner in Chicago had it at noon.", "And now?"]
NEW = ["Where is it?", "Looking it up. [call_77bc0e91] The scanner in Chicago had it at noon.", "And now?"]


class CallId:
    """Claims replaced messages in which only call ids differ."""

    code = "KV405"
    name = "call-id"
    rank = 2
    fix = Fix("report", safe=False)
    docs = Docs(
        what="Finds earlier messages that differ only in the ids of tool calls.",
        why="Ids made anew when the history is rebuilt break the prefix at the first call.",
        instead="Keep the ids that the model's answer came with, or derive them from the call's place.",
        references=(
            "NousResearch/hermes-agent#3991",
            "router-for-me/CLIProxyAPI#5107",
        ),
    )
    valid = (Sample("a growing history", dialogue([history(n) for n in (1, 2, 3)])),)
    invalid = (
        Sample(
            "a new id when sent again",
            dialogue([OLD, [*NEW, "Still there, in the hall.", "Thanks, I will wait for it."]]),
            path="messages[2].content",
        ),
    )

    def claims_change(self, change: Change, step: Step, corpus: Corpus) -> bool:
        """Equal once ids are taken out."""
        if change.kind != "replaced":
            return False
        old, new = old_unit(change, step, corpus), new_unit(change, step, corpus)
        return [_ID.sub("", f.text) for f in old.fields] == [_ID.sub("", f.text) for f in new.fields]

    def place(self, change: Change, step: Step, corpus: Corpus) -> Place:
        """The first id that differs."""
        index, path, role, start, end = changed_place(change, step, corpus)
        for field in new_unit(change, step, corpus).fields:
            if field.path == path:
                offset = max(field.offset, 0)
                for match in _ID.finditer(field.text):
                    if match.start() + offset <= start < match.end() + offset:
                        return index, path, role, match.start() + offset, match.end() + offset
        return index, path, role, start, end

    def summary(self, breaks: list[Break]) -> str:
        """Says how often."""
        return f"tool call ids are made anew in {plural(len(breaks), 'step')}"


RULE = CallId()
