"""KV102 calendar-date: today's date, constant in a day, another one tomorrow."""

from kvtool.lint.corpus import Corpus
from kvtool.lint.rule import Docs, Sample
from kvtool.lint.samples import AGENT, chat
from kvtool.prompts.slots import Slot
from kvtool.prompts.values import is_date, mostly
from kvtool.report import Fix


class CalendarDate:
    """Names slots whose values are dates or weekdays without the time of day."""

    code = "KV102"
    name = "calendar-date"
    fix = Fix("freeze", safe=True)
    docs = Docs(
        what="Finds today's date or weekday in the system prompt or in a tool, wherever it is written.",
        why="At midnight every cached prefix behind the date is lost at once, running sessions included.",
        instead="Say the date once, at the start of the conversation, and keep it for the session.",
        references=(
            "anomalyco/opencode#32622",
            "zeroclaw-labs/zeroclaw#10858",
        ),
    )
    valid = (
        Sample(
            "one day only",
            [chat(f"Today is Monday, March 3, 2025.\n{AGENT}", ["Hi"], time=n) for n in range(3)],
        ),
        Sample(
            "the date stands last",
            [chat(AGENT, [f"Hi\n\nToday is 2025-03-0{d}."], time=d) for d in (1, 2, 3)],
        ),
    )
    invalid = (
        Sample(
            "the date in the first line",
            [chat(f"Today is March {d}, 2025.\n{AGENT}", ["Hi there"], time=d) for d in (3, 4, 5)],
            path="messages[0].content",
            slot="March 3, 2025",
        ),
    )

    def claims(self, slot: Slot, corpus: Corpus) -> bool:
        """Most values are dates."""
        return mostly(slot.values(), is_date)

    def message(self, slot: Slot, corpus: Corpus) -> str:
        """Says how many days the log spans."""
        return f"a date in the {slot.role} prompt takes {len(slot.values())} values"


RULE = CalendarDate()
