"""KV105 environment: where the agent runs, such as its folder, branch, file tree or host."""

import re

from kvtool.lint.corpus import Corpus
from kvtool.lint.labels import CONTEXT, COUNTER, ENVIRONMENT, USER, nearest
from kvtool.lint.rule import Docs, Sample
from kvtool.lint.samples import AGENT, chat, turns
from kvtool.prompts.slots import Slot
from kvtool.prompts.values import mostly
from kvtool.report import Fix

_PATH = re.compile(r"(?=.*[^\W\d_])(?:~|\.{0,2}|[\w.@+-]+)/[\w.@+~-]+(?:/[\w.@+~ -]*)*|[A-Za-z]:\\[^\n]*")
_ZONE = re.compile(r"(?:Africa|America|Antarctica|Asia|Atlantic|Australia|Europe|Indian|Pacific|Etc|US)/\w+")
"""Time zones look like paths; they are a user's."""
_GIT = re.compile(
    r"^\s?(?:[MADRCU?!]{1,2}\s+\S|On branch |[0-9a-f]{7,40} )|working tree|modified:|untracked", re.I | re.M
)
_VARIABLE = re.compile(r"^(?:export )?[A-Z][A-Z0-9_]*=", re.M)
_FILES = re.compile(r"[\w+-][\w./+-]*\.[A-Za-z]\w{0,4}(?:[,;]?\s+[\w+-][\w./+-]*\.[A-Za-z]\w{0,4})*")
"""Names of files, one or a list of them."""
_TREE = re.compile(r"^[\s│├└─|`+-]*[\w.@-]+(?:\.\w{1,5}|/)\s*$", re.M)


WORDY = 5
"""Spaces in a line from which it is prose, not a path, a branch or an entry of a list."""


class Environment:
    """Names paths, git states, file trees, and what is labelled as host, platform or version."""

    code = "KV105"
    name = "environment"
    fix = Fix("move-to-last-user", safe=True)
    docs = Docs(
        what="Finds working folders, git status, file trees and host names in the system prompt or in tools.",
        why="Every project, commit or machine gets its own prefix, although the instructions are the same.",
        instead="Describe the environment at the end of the conversation, or in its first user message.",
        references=("anthropics/claude-agent-sdk-python#784",),
    )
    valid = (Sample("one environment", turns(f"Working directory: /home/ann/shop\n{AGENT}", 3)),)
    invalid = (
        Sample(
            "the working folder in the first line",
            [
                chat(
                    f"Working directory: /home/{who}/code/{who}-app\n{AGENT}", ["Hello"], session=who, time=n
                )
                for n, who in enumerate(("ann", "bob", "eve"))
            ],
            path="messages[0].content",
            slot="/home/ann/code/ann-app",
        ),
        Sample(
            "the state of the repository",
            [
                chat(f"Git status:\n{state}\n\n{AGENT}", ["Hello"], session=str(n), time=n)
                for n, state in enumerate(
                    (" M a/b.py\n?? c.txt", " M shop/cart.py", "A  d.py\n M e.py\n D f.py")
                )
            ],
            path="messages[0].content",
            slot=" M a/b.py\n?? c.txt",
        ),
    )

    def claims(self, slot: Slot, corpus: Corpus) -> bool:
        """By the values' shape, else by the label nearest to the slot."""
        values = [value for value in slot.values() if value.strip()]
        if mostly(values, lambda value: bool(_PATH.fullmatch(value.strip())) and not _ZONE.match(value)):
            return True
        if mostly(values, lambda value: _FILES.fullmatch(value.strip()) is not None):
            return True
        if mostly(values, lambda value: len(_VARIABLE.findall(value)) >= 2):
            return True
        if mostly(
            values, lambda value: len(_TREE.findall(value)) >= 3 or _GIT.search(value) is not None, 0.6
        ):
            return True
        if nearest(slot, ENVIRONMENT, USER, COUNTER, CONTEXT) is not ENVIRONMENT:
            return False
        return mostly(values, lambda value: value.count(" ") < WORDY * (1 + value.strip().count("\n")))

    def message(self, slot: Slot, corpus: Corpus) -> str:
        """Says how many environments there are."""
        return f"the environment is described in the {slot.role} prompt, in {len(slot.values())} states"


RULE = Environment()
