"""gemini: generateContent bodies, pairs and envelopes."""

from collections.abc import Iterator
from typing import Any

from kvtool.logs import bodies, chat
from kvtool.logs.format import Format
from kvtool.requests import Request, Source


class Gemini(Format):
    """A row is a body with `contents`, or holds one."""

    name = "gemini"
    rank = 18

    @classmethod
    def claims(cls, row: Any) -> bool:
        """`contents` with `parts`."""
        found = chat.find_body(row, ("contents",))
        if found is None or bodies.api_of(found[0]) != "gemini":
            return False
        contents = found[0]["contents"]
        return isinstance(contents, list) and any(
            isinstance(one, dict) and "parts" in one for one in contents
        )

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """One request a row."""
        yield bodies.body_request(row, source)


FORMAT = Gemini
