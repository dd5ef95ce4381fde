"""KV407 reserialized: the same message with other white space, line ends, JSON or Unicode form."""

import json
import re
import unicodedata

from kvtool.lint.corpus import Corpus
from kvtool.lint.history import Break, Place, changed_place, new_unit, old_unit
from kvtool.lint.rule import Docs, Sample
from kvtool.lint.samples import dialogue, history
from kvtool.prompts.edits import Edit, TextEdit
from kvtool.prompts.turns import Change, Step
from kvtool.report import Fix


class Reserialized:
    """Claims replaced messages that are equal in canonical form."""

    code = "KV407"
    name = "reserialized"
    rank = 1
    fix = Fix("canonicalize", safe=True)
    docs = Docs(
        what="Finds earlier messages that differ only in white space, line ends, JSON layout or Unicode.",
        why="For people it is the same message; for the cache it is another one, and all behind it misses.",
        instead="Send messages again byte for byte: store them, do not rebuild them.",
    )
    valid = (Sample("a growing history", dialogue([history(n) for n in (1, 2, 3)])),)
    invalid = (
        Sample(
            "spaces at the end when read back",
            dialogue([history(3), [history(4)[0], history(4)[1] + "  ", *history(4)[2:]]]),
            path="messages[2].content",
            slot="  ",
        ),
    )

    def claims_change(self, change: Change, step: Step, corpus: Corpus) -> bool:
        """Equal in canonical form."""
        if change.kind != "replaced":
            return False
        old, new = old_unit(change, step, corpus), new_unit(change, step, corpus)
        return [(f.part, canonical(f.text)) for f in old.fields] == [
            (f.part, canonical(f.text)) for f in new.fields
        ]

    def place(self, change: Change, step: Step, corpus: Corpus) -> Place:
        """The characters that differ."""
        return changed_place(change, step, corpus)

    def summary(self, breaks: list[Break]) -> str:
        """Says how often."""
        return f"earlier messages come back in another form in {len(breaks)} steps"

    def edits(self, change: Change, step: Step, corpus: Corpus) -> list[Edit]:
        """The canonical form that takes the difference away."""
        parts = [(f.part, f.text) for f in new_unit(change, step, corpus).fields]
        before = {f.part: f.text for f in old_unit(change, step, corpus).fields}
        changed = [part for part, text in parts if before.get(part) != text]
        edits: list[Edit] = []
        if any(part.endswith("arguments") for part in changed):
            edits.append(TextEdit(self.code, "canonical-arguments"))
        if any(not part.endswith("arguments") for part in changed):
            edits.append(TextEdit(self.code, "canonical-text"))
        return edits


def canonical(text: str) -> str:
    """JSON reprinted with sorted keys; other text in NFC with white space runs as one space."""
    stripped = text.strip()
    if stripped[:1] in ("{", "["):
        try:
            return json.dumps(json.loads(stripped), sort_keys=True)
        except (ValueError, RecursionError):
            pass
    return re.sub(r"\s+", " ", unicodedata.normalize("NFC", stripped))


RULE = Reserialized()
