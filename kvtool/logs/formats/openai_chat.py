"""openai-chat: chat completions bodies, request and response pairs, gateway envelopes."""

from collections.abc import Iterator
from typing import Any

from kvtool.logs import chat
from kvtool.logs.fields import ID_KEYS, named, session_of, structured, tenant_of, time_of
from kvtool.logs.format import BadRow, Format
from kvtool.requests import Request, Source

WANTED = ("messages",)


class OpenAIChat(Format):
    """A row is a body, or holds one under `request`, `body`, ...; a bare list of messages also counts."""

    name = "openai-chat"
    rank = 10

    @classmethod
    def claims(cls, row: Any) -> bool:
        """A `messages` list whose first element has a role."""
        found = chat.find_body(row, WANTED)
        messages = structured(found[0]["messages"])[0] if found else row
        return (
            isinstance(messages, list)
            and bool(messages)
            and isinstance(messages[0], dict)
            and "role" in messages[0]
        )

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """One request a row."""
        if isinstance(row, list):
            yield Request(
                id=f"{source.file}:{source.row}",
                source=source,
                messages=chat.chat_messages(row, "", {}),
                paths={"messages": ""},
            )
            return
        found = chat.find_body(row, WANTED)
        if found is None:
            raise BadRow("no `messages` in the row")
        body, path = found
        prompt = chat.chat_prompt(body, path)
        answer = chat.response_of(row) if path or "choices" not in row else row
        output, output_tokens = chat.chat_output(answer)
        moment = time_of(row)
        if moment is None:
            moment = time_of(body)
        if moment is None and isinstance(answer, dict):
            moment = time_of(answer)
        yield Request(
            id=named(row, ID_KEYS) or f"{source.file}:{source.row}",
            source=source,
            arrival=moment,
            session=session_of(row, row.get("request"), body),
            tenant=tenant_of(row, body),
            model=prompt.model or named(row, ("model",)),
            messages=prompt.messages,
            tools=prompt.tools,
            output=output,
            output_tokens=output_tokens,
            paths=prompt.paths or None,
        )


FORMAT = OpenAIChat
