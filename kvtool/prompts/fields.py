"""A prompt as fields: the strings of a request that reach the model, in the order in which they stand there.

Fields come from the rendered prompt, so what a template does not print (message ids, cache_control)
is not there and cannot raise a finding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvtool.requests import Request
from kvtool.spans import Rendered

OPENING = 64
HEAD_ROLES = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Field:
    """`text` as printed came from characters [offset, ...) of the string at `path` (-1: JSON of it).

    `message` is the index of the message, -1 for tools; `part` names the field within it.
    """

    path: str
    role: str
    text: str
    offset: int
    message: int
    part: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's fields. `head` counts the leading messages that are instructions, not conversation.

    opening: the first characters of the rendered prompt.
    """

    request: Request
    fields: tuple[Field, ...]
    head: int
    opening: str

    def system(self) -> list[Field]:
        """Fields of the leading instructions."""
        return [field for field in self.fields if 0 <= field.message < self.head]

    def conversation(self) -> list[Field]:
        """Fields after the leading instructions, tools left out."""
        return [field for field in self.fields if field.message >= self.head]

    def shows_tools(self) -> bool:
        """Whether the template printed the tools."""
        return any(field.message < 0 for field in self.fields)


def read_prompt(request: Request, rendered: Rendered) -> Prompt:
    """Fields of `request`, whose prompt `rendered` is."""
    fields = []
    for span in rendered.spans:
        message, part = split_path(span.path)
        fields.append(
            Field(span.path, span.role, rendered.text[span.start : span.end], span.offset, message, part)
        )
    return Prompt(request, tuple(fields), head_length(request.messages or []), rendered.text[:OPENING])


def head_length(messages: Sequence[dict[str, object]]) -> int:
    """Number of leading system and developer messages."""
    for index, message in enumerate(messages):
        if message.get("role") not in HEAD_ROLES:
            return index
    return len(messages)


def split_path(path: str) -> tuple[int, str]:
    """'messages[3].content[0].text' -> (3, 'content[0].text'); tools and bare text are message -1 and 0."""
    if path.startswith("messages["):
        close = path.index("]")
        return int(path[9:close]), path[close + 2 :]
    return (-1, path) if path.startswith("tools") else (0, path)
