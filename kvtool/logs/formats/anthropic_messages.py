"""anthropic-messages: Messages API bodies, pairs and envelopes."""

from collections.abc import Iterator
from typing import Any

from kvtool.logs import bodies, chat
from kvtool.logs.format import Format
from kvtool.requests import Request, Source


class AnthropicMessages(Format):
    """A row is a body with `messages` in content blocks, or holds one; `system` stands beside them."""

    name = "anthropic-messages"
    rank = 20

    @classmethod
    def claims(cls, row: Any) -> bool:
        """Blocks, a `system` field or tools with an `input_schema`."""
        found = chat.find_body(row, ("messages",))
        return found is not None and bodies.api_of(found[0], bodies.url_of(row)) == "anthropic"

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """One request a row."""
        yield bodies.body_request(row, source)


FORMAT = AnthropicMessages
