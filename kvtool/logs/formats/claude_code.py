"""claude-code: session files; every answer of the assistant is one request. No system prompt, no tools."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvtool.logs.anthropic import add_message
from kvtool.logs.chat import Prompt
from kvtool.logs.fields import count_or_none, microseconds, text_or_none
from kvtool.logs.format import BadRow, Format
from kvtool.requests import Message, Request, Source

TURNS = ("user", "assistant")
MISSING = "the log records no system prompt and no tools"


@dataclass(frozen=True, slots=True)
class _Turn:
    """A message and its parent; following parents gives the conversation."""

    parent: "_Turn | None"
    message: dict[str, Any]
    answer: str | None


class ClaudeCode(Format):
    """Rows are turns: `type`, `message`, `uuid`, `parentUuid`, `sessionId`; or one object's `loglines`.

    An answer that was streamed into several rows of one `message.id` is one request. Where no row names a
    parent, the order of the file is the conversation.
    """

    name = "claude-code"
    rank = 65
    omits = "system prompt and tools"

    def __init__(self, shared: dict[str, Any] | None = None) -> None:
        super().__init__(shared)
        self._turns: dict[str, _Turn] = {}
        self._last: dict[str, _Turn] = {}
        self._linked = False
        self._session: str | None = None

    @classmethod
    def claims(cls, row: Any) -> bool:
        """A turn with `sessionId` and `message`, or a list of such under `loglines`."""
        if not isinstance(row, dict):
            return False
        if isinstance(row.get("loglines"), list):
            return any(isinstance(one, dict) and one.get("type") in TURNS for one in row["loglines"])
        return row.get("type") in TURNS and "sessionId" in row and "message" in row

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """A request for each row that begins an answer; summaries and snapshots are passed over."""
        if not isinstance(row, dict):
            raise BadRow("the row is not an object")
        if isinstance(row.get("loglines"), list):
            for index, one in enumerate(row["loglines"]):
                if isinstance(one, dict):
                    yield from self._turn(one, source, f"{source.file}:{source.row}-{index}")
            return
        if not isinstance(row.get("type"), str):
            raise BadRow("type is missing")
        yield from self._turn(row, source, f"{source.file}:{source.row}")

    def _turn(self, row: dict[str, Any], source: Source, name: str) -> Iterator[Request]:
        if row.get("type") not in TURNS:
            return
        message = row.get("message")
        if not isinstance(message, dict):
            raise BadRow("message is not an object")
        if not isinstance(message.get("content"), str | list):
            raise BadRow("message.content is neither text nor blocks")
        if message.get("role") not in TURNS:
            raise BadRow("message.role is missing")
        add_message(Prompt([]), message, "message")  # a turn that no prompt can take is not remembered
        session = text_or_none(row.get("sessionId")) or self._session or source.file
        self._session = session
        chain = f"{session}/sidechain" if row.get("isSidechain") is True else session
        parent = self._parent(row, chain)
        answer = None
        if row["type"] == "assistant":
            answer = text_or_none(message.get("id")) or text_or_none(row.get("requestId")) or name
        turn = _Turn(parent, message, answer)
        self._last[chain] = turn
        uuid = text_or_none(row.get("uuid"))
        if uuid is not None:
            self._turns[uuid] = turn
        if answer is None or (parent is not None and parent.answer == answer):
            return
        if parent is None:
            raise BadRow("an answer without anything before it")
        usage = message.get("usage")
        yield Request(
            id=answer,
            source=source,
            arrival=microseconds(row.get("timestamp")),
            session=chain,
            model=text_or_none(message.get("model")),
            messages=_conversation(parent),
            paths={"model": "message.model"},
            output=_conversation(_Turn(None, message, None))[0],
            output_tokens=count_or_none(usage.get("output_tokens")) if isinstance(usage, dict) else None,
            incomplete=MISSING,
        )

    def _parent(self, row: dict[str, Any], chain: str) -> _Turn | None:
        named = text_or_none(row.get("parentUuid"))
        if named is not None:
            self._linked = True
            return self._turns.get(named, self._last.get(chain))
        return None if self._linked and "parentUuid" in row else self._last.get(chain)


def _conversation(last: _Turn) -> list[Message]:
    turns: list[_Turn] = []
    turn: _Turn | None = last
    while turn is not None:
        turns.append(turn)
        turn = turn.parent
    prompt = Prompt([])
    merged: list[dict[str, Any]] = []
    answer: str | None = None
    for one in reversed(turns):
        content = one.message["content"]
        if one.answer is not None and one.answer == answer and isinstance(content, list):
            merged[-1] = {**merged[-1], "content": [*merged[-1]["content"], *content]}
        else:
            merged.append(one.message)
        answer = one.answer if isinstance(content, list) else None
    for message in merged:
        add_message(prompt, message, "message")
    return prompt.messages


FORMAT = ClaudeCode
