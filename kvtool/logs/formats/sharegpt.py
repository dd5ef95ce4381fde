"""sharegpt: conversations of {from, value}; every turn of the model is one request."""

from collections.abc import Iterator
from typing import Any

from kvtool.logs import chat
from kvtool.logs.bodies import as_text
from kvtool.logs.fields import named, structured, text_or_none
from kvtool.logs.format import BadRow, Format
from kvtool.requests import Message, Request, Source

ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
    "function_response": "tool",
    "system": "system",
}


class ShareGPT(Format):
    """A row is one conversation; `tools` is a JSON string, a `system` text may stand beside."""

    name = "sharegpt"
    rank = 60

    @classmethod
    def claims(cls, row: Any) -> bool:
        """`conversations` (or `conversation`) of turns with `from` and `value`."""
        if not isinstance(row, dict):
            return False
        turns = structured(row.get(_key(row)))[0]
        return isinstance(turns, list) and bool(turns) and isinstance(turns[0], dict) and "from" in turns[0]

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """The prompt of each turn of the model is what stands before it."""
        if not isinstance(row, dict):
            raise BadRow("the row is not an object")
        key = _key(row)
        turns, step = structured(row.get(key))
        if not isinstance(turns, list):
            raise BadRow(f"no `{key}` in the row")
        paths: dict[str, str] = {}
        messages: list[Message] = []
        if row.get("system"):
            paths["messages[0].content"] = "system"
            messages.append({"role": "system", "content": as_text(row["system"])})
        first = len(messages)
        for index, turn in enumerate(turns):
            self._turn(messages, turn, f"{key}{step}[{index}]", paths)
        tools, step = structured(row.get("tools"))
        if tools:
            paths["tools"] = "tools" + step
            tools = chat.chat_tools(tools, "tools")
            for number, tool in enumerate(tools):
                if "function" not in tool:
                    paths[f"tools[{number}].function"] = f"tools{step}[{number}]"
            tools = [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]
        session = named(row, ("id", "conversation_id")) or f"{source.file}:{source.row}"
        for index, message in enumerate(messages):
            if message["role"] == "assistant" and index > first:
                yield Request(
                    id=f"{session}-{index}",
                    source=source,
                    session=session,
                    model=named(row, ("model",)),
                    messages=messages[:index],
                    tools=tools or None,
                    output=message,
                    paths=paths,
                )

    @staticmethod
    def _turn(messages: list[Message], turn: Any, where: str, paths: dict[str, str]) -> None:
        if not isinstance(turn, dict):
            raise BadRow("conversations[] is not an object")
        speaker = text_or_none(turn.get("from"))
        if speaker is None or speaker not in ROLES:
            raise BadRow("conversations[].from is missing or unknown")
        ours = f"messages[{len(messages)}]"
        value = as_text(turn.get("value"))
        if speaker == "function_call":
            call, step = structured(value)
            calls = call if isinstance(call, list) else [call]
            if all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in calls):
                shaped = []
                for number, one in enumerate(calls):
                    at = f"{where}.value{step}" + (f"[{number}]" if isinstance(call, list) else "")
                    paths[f"{ours}.tool_calls[{number}].function"] = at
                    function = {"name": one["name"], "arguments": one.get("arguments", {})}
                    shaped.append({"type": "function", "function": function})
                messages.append({"role": "assistant", "content": "", "tool_calls": shaped})
                return
        paths[f"{ours}.content"] = f"{where}.value"
        messages.append({"role": ROLES[speaker], "content": value})


def _key(row: dict[str, Any]) -> str:
    return "conversations" if "conversations" in row or "conversation" not in row else "conversation"


FORMAT = ShareGPT
