"""tau-bench: agent trajectories; every assistant message of `traj` is one request."""

import re
from collections.abc import Iterator
from typing import Any

from kvtool.logs import chat
from kvtool.logs.fields import structured, text_or_none
from kvtool.logs.format import BadRow, Format
from kvtool.requests import Request, Source

ANSWER = re.compile(r"(?<=\n)assistant: ")


class TauBench(Format):
    """A row is one run: `task_id`, `trial` and `traj`, a list of OpenAI messages.

    The few-shot files hold only a `messages_display`, a transcript without the system prompt.
    """

    name = "tau-bench"
    rank = 60
    omits = "tools"

    @classmethod
    def claims(cls, row: Any) -> bool:
        """A `traj` list beside a `task_id`, or a transcript."""
        if not isinstance(row, dict):
            return False
        if isinstance(row.get("messages_display"), str):
            return True
        return "task_id" in row and isinstance(structured(row.get("traj"))[0], list)

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """The prompt of each assistant message is what stands before it."""
        if isinstance(row, dict) and isinstance(row.get("messages_display"), str):
            yield from self._transcript(row["messages_display"], source)
            return
        if not isinstance(row, dict) or "traj" not in row:
            raise BadRow("no `traj` in the row")
        trajectory, step = structured(row["traj"])
        paths = {"messages": "traj" + step}
        messages = chat.chat_messages(trajectory, "traj", paths)
        task = text_or_none(row.get("task_id")) or str(source.row)
        trial = text_or_none(row.get("trial"))
        session = f"{task}-{trial}" if trial is not None else task
        for index, message in enumerate(messages):
            if message["role"] == "assistant" and index:
                yield Request(
                    id=f"{session}-{index}",
                    source=source,
                    session=session,
                    messages=messages[:index],
                    output=message,
                    paths=paths,
                )

    @staticmethod
    def _transcript(text: str, source: Source) -> Iterator[Request]:
        session = f"{source.file}:{source.row}"
        for number, turn in enumerate(ANSWER.finditer(text)):
            yield Request(
                id=f"{session}-{number}",
                source=source,
                session=session,
                text=text[: turn.start()],
                paths={"text": "messages_display"},
                incomplete="a transcript without system prompt, tools and tool calls",
            )


FORMAT = TauBench
