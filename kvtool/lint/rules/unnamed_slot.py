"""KV100 unnamed-slot: a varying text that no other rule can name."""

from kvtool.lint.corpus import Corpus
from kvtool.lint.rule import Docs, Sample
from kvtool.lint.samples import AGENT, chat, turns
from kvtool.prompts.slots import Slot
from kvtool.report import Fix

MOODS = ("calm", "hasty", "merry")


class UnnamedSlot:
    """Takes what is left: the price is known even where the cause is not."""

    code = "KV100"
    name = "unnamed-slot"
    fix = Fix("report", safe=False)
    docs = Docs(
        what="Reports any other text that varies between otherwise equal instructions.",
        why="The cache does not care what varies: everything behind it misses.",
        instead="Look at the values: move them behind the stable text, or make them constant.",
    )
    valid = (Sample("nothing varies", turns(AGENT, 3)),)
    invalid = (
        Sample(
            "a mood",
            [chat(f"Be {mood} now.\n{AGENT}", ["Hello"], time=n) for n, mood in enumerate(MOODS)],
            path="messages[0].content",
            slot="calm",
        ),
    )

    def claims(self, slot: Slot, corpus: Corpus) -> bool:
        """Everything."""
        return True

    def message(self, slot: Slot, corpus: Corpus) -> str:
        """Says how many values there are."""
        return f"a text in the {slot.role} prompt takes {len(slot.values())} values"


RULE = UnnamedSlot()
