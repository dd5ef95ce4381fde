"""KV301 context-before-history: memory or retrieved documents in the system prompt, swapped turn by turn."""

from kvtool.lint.corpus import Corpus
from kvtool.lint.labels import CONTEXT, nearest
from kvtool.lint.rule import Docs, Sample
from kvtool.lint.samples import AGENT, chat, turns
from kvtool.lint.spread import changes_in_sessions
from kvtool.prompts.slots import Slot
from kvtool.report import Fix

LARGE = 60
"""Characters from which a value is a block of context."""

NOTES = (
    "Bags over 23 kilograms cost 50 dollars on flights inside the country.",
    "A lost bag is searched for during 21 days; then the customer is paid.",
    "On arrival, late bags are driven to the customer's address at no cost.",
)


ANSWER = (
    "No, your bag is late. It was scanned in Chicago this morning and comes with the next flight tonight."
)


class ContextBeforeHistory:
    """Names large blocks of text that change during conversations or are labelled as memory or documents."""

    code = "KV301"
    name = "context-before-history"
    fix = Fix("move-to-last-user", safe=True)
    docs = Docs(
        what="Finds memories and retrieved documents in the system prompt swapped from turn to turn.",
        why="The conversation stands behind the block: each exchange computes the whole history again.",
        instead="Put retrieved text at the end of the conversation, beside the question that it answers.",
        references=(
            "mem0ai/mem0#4341",
            "open-webui/open-webui#30239",
            "shareAI-lab/learn-claude-code#311",
        ),
    )
    valid = (Sample("the same notes all along", turns(f"{AGENT}\n\n# Notes\n{NOTES[0]}", 3)),)
    invalid = (
        Sample(
            "notes for each question",
            [
                chat(
                    f"{AGENT}\n\n# Notes\n{note}\n\nAnswer from the notes.",
                    ["Is it lost?", ANSWER, "Where is it?", ANSWER, "And then?"][: 1 + 2 * n],
                    session="a",
                    time=n,
                )
                for n, note in enumerate(NOTES)
            ],
            path="messages[0].content",
            slot=NOTES[0],
        ),
    )

    def claims(self, slot: Slot, corpus: Corpus) -> bool:
        """Large, and either exchanged in sessions or labelled as context."""
        filled = [value for value in slot.values() if value.strip()]
        if not filled or slot.key[0] != "messages":
            return False
        large = sum(map(len, filled)) >= LARGE * len(filled)
        exchanged = corpus.has_steps(slot) and changes_in_sessions(slot, corpus, 0.3)
        return large and (exchanged or nearest(slot, CONTEXT) is CONTEXT)

    def message(self, slot: Slot, corpus: Corpus) -> str:
        """Says how often the block is exchanged."""
        return f"a block of context before the history takes {len(slot.values())} values"


RULE = ContextBeforeHistory()
