"""KV104 session-token: an identifier or scratch path that stays during a session and differs across them."""

import re

from kvtool.lint.corpus import Corpus
from kvtool.lint.labels import ENVIRONMENT, REQUEST, SESSION, USER, label, nearest
from kvtool.lint.rule import Docs, Sample
from kvtool.lint.samples import AGENT, chat, turns
from kvtool.lint.spread import constant_in_sessions
from kvtool.prompts.slots import Slot
from kvtool.prompts.values import is_code, is_epoch, is_identifier, mostly
from kvtool.report import Fix

_TEMPORARY = re.compile(r"te?mp|scratch|sandbox|/var/folders/|session|/run/", re.I)
_SCRATCH = re.compile(r"[/\\](?:te?mp|scratch|sandbox|var/folders)(?:[/\\]|[-_.])", re.I)
PATHS = ("/tmp/run-8c1f/work", "/tmp/run-03be/work", "/tmp/run-77aa/work")


class SessionToken:
    """Names identifiers and temporary paths that a session keeps, and what is labelled a session's."""

    code = "KV104"
    name = "session-token"
    fix = Fix("move-to-last-user", safe=True)
    docs = Docs(
        what="Finds session ids, temporary paths and scratch folders in the system prompt or in tools.",
        why="No two sessions share what stands behind such a token: every session pays for the whole head.",
        instead="Use a placeholder or a fixed path, or name the token in the first user message.",
        references=(
            "anthropics/claude-code#92524",
            "anthropics/claude-code#77306",
            "code-yeongyu/oh-my-openagent#6881",
        ),
    )
    valid = (Sample("one token for all", turns(f"Session 9f8e7d6c5b4a.\n{AGENT}", 3)),)
    invalid = (
        Sample(
            "a scratch folder of the session",
            [
                chat(
                    f"Write files to {path} only.\n{AGENT}",
                    ["Hello", "Yes?", "Go"][: 1 + 2 * step],
                    session=path,
                    time=n,
                )
                for n, (path, step) in enumerate((path, step) for path in PATHS for step in (0, 1))
            ],
            path="messages[0].content",
            slot=PATHS[0],
        ),
    )

    def claims(self, slot: Slot, corpus: Corpus) -> bool:
        """Identifiers kept by sessions, or labelled as a session's where no session has two requests."""
        values = slot.values()
        scratch = mostly(
            values, lambda value: _SCRATCH.search(value) is not None and " " not in value.strip()
        )
        if not (
            scratch or is_code(values) or mostly(values, lambda one: is_identifier(one) or is_epoch(one))
        ):
            return False
        says = nearest(slot, SESSION, REQUEST, ENVIRONMENT, USER)
        if (
            scratch
            or _TEMPORARY.search(label(slot))
            or mostly(values, lambda value: _TEMPORARY.search(value) is not None)
        ):
            says = SESSION
        elif mostly(values, lambda value: "/" in value or "\\" in value):
            return False  # a path is a session's only where it says so
        kept = constant_in_sessions(slot, corpus)
        return says is SESSION or (kept and says not in (ENVIRONMENT, USER))

    def message(self, slot: Slot, corpus: Corpus) -> str:
        """Says how many there are."""
        return f"{len(slot.values())} sessions write their own token into the {slot.role} prompt"


RULE = SessionToken()
