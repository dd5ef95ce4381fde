"""KV107 user-field: who is served, such as a name, an e-mail address, a plan, a locale."""

import re

from kvtool.lint.corpus import Corpus
from kvtool.lint.labels import CONTEXT, USER, nearest
from kvtool.lint.rule import Docs, Sample
from kvtool.lint.samples import AGENT, chat, turns
from kvtool.lint.spread import changes_in_sessions
from kvtool.prompts.slots import Slot
from kvtool.prompts.values import mostly
from kvtool.report import Fix

_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_FULL_NAME = re.compile(r"[^\W\d_a-z][\w'’-]+(?: [^\W\d_a-z][\w.'’-]*){1,2}")
LONGEST = 80
"""Characters of a field; what is longer is a text about the user, not a field."""


class UserField:
    """Names short values that are e-mail addresses or stand behind a user's label."""

    code = "KV107"
    name = "user-field"
    fix = Fix("move-to-last-user", safe=True)
    docs = Docs(
        what="Finds names, addresses, plans, roles and locales of users in the shared head of the prompt.",
        why="Users do not share what stands behind their own data; little behind it costs little.",
        instead="Introduce the user in the first user message.",
        references=(
            "anthropics/claude-agent-sdk-python#784",
            "sipeed/picoclaw#3321",
        ),
    )
    valid = (Sample("one user", turns(f"The customer is Ann Lee.\n{AGENT}", 3)),)
    invalid = (
        Sample(
            "the customer's name",
            [
                chat(f"Customer name: {who}\n{AGENT}", ["Hello"], session=who, time=n)
                for n, who in enumerate(("Ann Lee", "Bob", "Eve Adams"))
            ],
            path="messages[0].content",
            slot="Ann Lee",
        ),
    )

    def claims(self, slot: Slot, corpus: Corpus) -> bool:
        """E-mail addresses, or short values behind a user's label that a session keeps."""
        values = slot.values()
        if mostly(values, lambda value: _EMAIL.fullmatch(value.strip()) is not None):
            return True
        short = mostly(values, lambda value: len(value) <= LONGEST and "\n" not in value.strip())
        steady = not changes_in_sessions(slot, corpus, 0.5) or len(corpus.conversations(slot)) == len(
            slot.places
        )
        named = mostly(values, lambda value: _FULL_NAME.fullmatch(value.strip()) is not None)
        return short and steady and (named or nearest(slot, USER, CONTEXT) is USER)

    def message(self, slot: Slot, corpus: Corpus) -> str:
        """Says how many users there are."""
        return f"a user's data in the {slot.role} prompt takes {len(slot.values())} values"


RULE = UserField()
