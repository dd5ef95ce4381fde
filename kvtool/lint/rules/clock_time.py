"""KV101 clock-time: the time of day in instructions or tools, new for every request."""

from kvtool.lint.corpus import Corpus
from kvtool.lint.labels import SESSION, nearest
from kvtool.lint.rule import Docs, Sample
from kvtool.lint.samples import AGENT, chat, turns
from kvtool.lint.spread import constant_in_sessions
from kvtool.prompts.slots import Slot
from kvtool.prompts.values import is_clock, is_epoch, mostly
from kvtool.report import Fix


class ClockTime:
    """Names slots whose values tell the time to the minute or second, or are epoch stamps."""

    code = "KV101"
    name = "clock-time"
    fix = Fix("move-to-last-user", safe=True)
    docs = Docs(
        what="Finds a clock in the system prompt or in a tool's description.",
        why="Everything behind a value that changes with every request misses the cache, often all of it.",
        instead="Say the time at the end of the conversation. A time that stands last costs only itself.",
        references=(
            "NousResearch/hermes-agent#15866",
            "goruck/home-generative-agent#617",
            "Mintplex-Labs/anything-llm#6398",
        ),
    )
    valid = (
        Sample("a constant time", turns(AGENT + "\nThe current time is 2024-05-15 15:00:00 EST.", 3)),
        Sample(
            "a clock that stands last",
            [
                chat(AGENT, [f"Where is my bag?\n\nCurrent time: 2025-03-03 10:{m}:07"], time=m)
                for m in (10, 25, 40)
            ],
        ),
    )
    invalid = (
        Sample(
            "a clock in the first line",
            [
                chat(f"Current time: 2025-03-03 10:{m}:07\n{AGENT}", ["Where is my bag?"], time=m)
                for m in (10, 25, 40)
            ],
            path="messages[0].content",
            slot="2025-03-03 10:10:07",
        ),
    )

    def claims(self, slot: Slot, corpus: Corpus) -> bool:
        """Most values tell the time of day; a stamp that a session keeps as its id does not."""
        if not mostly(slot.values(), is_clock):
            return False
        stamps = mostly(slot.values(), is_epoch) and constant_in_sessions(slot, corpus)
        return not (stamps and nearest(slot, SESSION) is SESSION)

    def message(self, slot: Slot, corpus: Corpus) -> str:
        """Says how often it changes."""
        return f"a clock in the {slot.role} prompt takes {len(slot.values())} values"


RULE = ClockTime()
