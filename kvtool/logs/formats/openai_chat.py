"""openai-chat: chat completions bodies, request and response pairs, gateway envelopes."""

from collections.abc import Iterator
from typing import Any

from kvtool.logs import bodies, chat
from kvtool.logs.fields import structured
from kvtool.logs.format import Format
from kvtool.requests import Request, Source


class OpenAIChat(Format):
    """A row is a body, or holds one under `request`, `body`, ...; a bare list of messages also counts.

    Gateways log several APIs side by side, so each body is read as what it is.
    """

    name = "openai-chat"
    rank = 10

    @classmethod
    def claims(cls, row: Any) -> bool:
        """A `messages` list whose first element has a role."""
        found = chat.find_body(row, ("messages",))
        messages = structured(found[0]["messages"])[0] if found else row
        return (
            isinstance(messages, list)
            and bool(messages)
            and isinstance(messages[0], dict)
            and "role" in messages[0]
        )

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """One request a row."""
        yield bodies.body_request(row, source)


FORMAT = OpenAIChat
