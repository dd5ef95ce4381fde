"""KV106 counter: usage, tokens left, the number of a message: a figure that drifts."""

from kvtool.lint.corpus import Corpus
from kvtool.lint.labels import COUNTER, ENVIRONMENT, REQUEST, SESSION, USER, nearest
from kvtool.lint.rule import Docs, Sample
from kvtool.lint.samples import AGENT, chat, turns
from kvtool.lint.spread import drifts
from kvtool.prompts.slots import Slot
from kvtool.prompts.values import is_identifier, is_number, mostly
from kvtool.report import Fix


class Counter:
    """Names numbers that rise or fall through a conversation, or are labelled as a count."""

    code = "KV106"
    name = "counter"
    fix = Fix("move-to-last-user", safe=True)
    docs = Docs(
        what="Finds counts in the system prompt or in tools: context used, tokens left, message number.",
        why="The figure changes at every step, and everything behind it is computed again.",
        instead="Say it at the end of the conversation, or only when it matters.",
        references=(
            "NousResearch/hermes-agent#18547",
            "mangowhoiscloud/geode#2026",
        ),
    )
    valid = (Sample("a constant limit", turns(f"You have 200,000 tokens.\n{AGENT}", 3)),)
    invalid = (
        Sample(
            "context used",
            [
                chat(f"Context used: {p}%\n{AGENT}", ["Hello", "Hi", "So?"][:n], session="a", time=n)
                for n, p in ((1, 3), (3, 9))
            ],
            path="messages[0].content",
            slot="3",
        ),
    )

    def claims(self, slot: Slot, corpus: Corpus) -> bool:
        """Numbers with a drift, or with a counter's label."""
        if not mostly(slot.values(), is_number):
            return False
        if corpus.has_steps(slot) and mostly(slot.values(), is_identifier):
            return drifts(slot, corpus)  # many digits: a count only if it behaves like one
        says = nearest(slot, COUNTER, REQUEST, SESSION, USER, ENVIRONMENT)
        return drifts(slot, corpus) or says is COUNTER

    def message(self, slot: Slot, corpus: Corpus) -> str:
        """Names the range."""
        return f"a count in the {slot.role} prompt takes {len(slot.values())} values"


RULE = Counter()
