"""openai-responses: Responses API bodies, pairs and envelopes; stored turns are joined where logged."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvtool.logs import bodies, chat
from kvtool.logs.fields import text_or_none
from kvtool.logs.format import Format
from kvtool.requests import Request, Source, in_row

REMEMBERED = 20_000
"""Responses whose turns are kept for a later `previous_response_id`."""


class OpenAIResponses(Format):
    """A row is a body with `input` (and `instructions`), or holds one."""

    name = "openai-responses"
    rank = 20

    def __init__(self, shared: dict[str, Any] | None = None) -> None:
        super().__init__(shared)
        self._stored: OrderedDict[str, Request] = OrderedDict()

    @classmethod
    def claims(cls, row: Any) -> bool:
        """`input` as items, or as text beside `instructions`."""
        found = chat.find_body(row, ("instructions", "input"))
        return found is not None and bodies.api_of(found[0], bodies.url_of(row)) == "responses"

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """One request a row. A `previous_response_id` that the log has gives back the earlier turns."""
        request = bodies.body_request(row, source)
        found = chat.find_body(row, ("instructions", "input"))
        previous = text_or_none(found[0].get("previous_response_id")) if found else None
        if previous is not None and previous in self._stored:
            request = _continued(request, self._stored[previous])
        answer = chat.response_of(row) if isinstance(row, dict) else None
        if isinstance(answer, dict):
            inner = answer.get("body")
            response_id = text_or_none((inner if isinstance(inner, dict) else answer).get("id"))
            if response_id is not None:
                self._stored[response_id] = request
                while len(self._stored) > REMEMBERED:
                    self._stored.popitem(last=False)
        yield request


def _continued(request: Request, earlier: Request) -> Request:
    """`request` behind the turns of `earlier` and its answer. Instructions are not carried over."""
    assert request.messages is not None and earlier.messages is not None
    new, old = list(request.messages), list(earlier.messages)
    paths = dict(request.paths or {})
    head: list[Any] = []
    if paths.get("messages[0].content", "").endswith("instructions"):
        head = [new.pop(0)]
    if earlier.paths and earlier.paths.get("messages[0].content", "").endswith("instructions"):
        old.pop(0)
    answer = [earlier.output] if isinstance(earlier.output, dict) else []
    shift = len(old) + len(answer)
    moved = {f"messages[{at}]": in_row(earlier.source.row, "") for at in range(len(head), len(head) + shift)}
    for ours, theirs in paths.items():
        if ours.startswith("messages["):
            index, rest = ours[len("messages[") :].split("]", 1)
            at = int(index) if head and int(index) == 0 else int(index) + shift
            moved[f"messages[{at}]{rest}"] = theirs
        else:
            moved[ours] = theirs
    return replace(
        request,
        messages=[*head, *old, *answer, *new],
        paths=moved,
        session=request.session or earlier.session,
        incomplete=earlier.incomplete,
    )


FORMAT = OpenAIResponses
