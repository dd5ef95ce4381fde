"""inspect-ai: evaluation logs, whole (`.json`) or by sample (`.eval`); every model event is one request."""

from collections.abc import Iterator, Mapping
from typing import Any

from kvtool.logs import chat
from kvtool.logs.chat import Prompt
from kvtool.logs.fields import count_or_none, microseconds, text_or_none
from kvtool.logs.format import BadRow, Format
from kvtool.requests import Message, Request, Source

REFERENCES = ("attachment://", "tc://")


class InspectAI(Format):
    """A row is a log with `samples`, or one sample with `events`."""

    name = "inspect-ai"
    rank = 70

    @classmethod
    def claims(cls, row: Any) -> bool:
        """Events of inspect's kinds, directly or in samples."""
        if not isinstance(row, dict):
            return False
        if isinstance(row.get("eval"), dict) and isinstance(row.get("samples"), list):
            return True
        events = row.get("events")
        return isinstance(events, list) and any(
            isinstance(event, dict) and event.get("event") == "model" for event in events
        )

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """Requests in the order of the events."""
        if not isinstance(row, dict):
            raise BadRow("the row is not an object")
        if isinstance(row.get("samples"), list):
            for number, sample in enumerate(row["samples"]):
                if not isinstance(sample, dict):
                    raise BadRow("samples[] is not an object")
                yield from _sample(sample, f"samples[{number}]", source)
        elif isinstance(row.get("events"), list):
            yield from _sample(row, "", source)
        else:
            raise BadRow("neither samples nor events in the row")


def _sample(sample: dict[str, Any], path: str, source: Source) -> Iterator[Request]:
    name = text_or_none(sample.get("id"))
    epoch = text_or_none(sample.get("epoch"))
    session = f"{name}-{epoch}" if epoch else name
    attachments = sample.get("attachments")
    events = sample.get("events")
    for index, event in enumerate(events if isinstance(events, list) else []):
        if not isinstance(event, dict) or event.get("event") != "model":
            continue
        where = chat.join(path, f"events[{index}]")
        reader = _Event(attachments if isinstance(attachments, dict) else {}, chat.join(path, "attachments"))
        messages = reader.messages(event, sample, path, where)
        reader.prompt.paths["model"] = f"{where}.model"
        if not messages:
            raise BadRow("events[].input is empty")
        output = event.get("output")
        usage = output.get("usage") if isinstance(output, dict) else None
        yield Request(
            id=text_or_none(event.get("uuid")) or f"{source.file}:{source.row}-{where}",
            source=source,
            arrival=microseconds(event.get("timestamp")),
            session=session,
            model=text_or_none(event.get("model")),
            messages=messages,
            tools=reader.tools(event.get("tools"), f"{where}.tools"),
            output=chat.chat_output(output)[0],
            output_tokens=count_or_none(usage.get("output_tokens")) if isinstance(usage, dict) else None,
            paths=reader.prompt.paths,
            incomplete=reader.prompt.incomplete,
        )


class _Event:
    """Reads one model event; text that inspect moved to the attachments is put back."""

    def __init__(self, attachments: Mapping[str, Any], attachments_path: str) -> None:
        self.prompt = Prompt([])
        self._attachments = attachments
        self._attachments_path = attachments_path

    def messages(self, event: dict[str, Any], sample: dict[str, Any], path: str, where: str) -> list[Message]:
        """Own input and, by `input_refs`, ranges of the sample's message pool."""
        found: list[tuple[Any, str]] = []
        refs, pool = event.get("input_refs"), sample.get("message_pool")
        if isinstance(refs, list) and refs:
            if not isinstance(pool, list):
                raise BadRow("input_refs without a message_pool")
            for ref in refs:
                if not (isinstance(ref, list) and len(ref) == 2 and all(type(at) is int for at in ref)):
                    raise BadRow("input_refs[] is not a range")
                if not 0 <= ref[0] <= ref[1] <= len(pool):
                    raise BadRow("input_refs[] is outside the message_pool")
                at = chat.join(path, "message_pool")
                found += [(pool[number], f"{at}[{number}]") for number in range(*ref)]
        own = event.get("input")
        if not isinstance(own, list):
            raise BadRow("events[].input is not a list")
        found += [(message, f"{where}.input[{number}]") for number, message in enumerate(own)]
        return [self._message(message, number, at) for number, (message, at) in enumerate(found)]

    def tools(self, tools: Any, where: str) -> list[dict[str, Any]] | None:
        """inspect's tools are the `function` of OpenAI's."""
        if not tools:
            return None
        shaped = []
        self.prompt.paths["tools"] = where
        for number, tool in enumerate(chat.chat_tools(tools, "events[].tools")):
            self.prompt.paths[f"tools[{number}].function"] = f"{where}[{number}]"
            function = self._resolved(tool, f"tools[{number}].function", f"{where}[{number}]")
            shaped.append({"type": "function", "function": function})
        return shaped

    def _message(self, message: Any, number: int, where: str) -> Message:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRow("events[].input[].role is missing")
        ours = f"messages[{number}]"
        self.prompt.paths[ours] = where
        shaped: Message = {"role": message["role"]}
        content = self._resolved(message.get("content"), f"{ours}.content", f"{where}.content")
        if isinstance(content, list):
            content = [
                chat.content_part(part, f"{ours}.content[{at}]", f"{where}.content[{at}]", self.prompt.paths)
                for at, part in enumerate(content)
            ]
        elif content is not None and not isinstance(content, str):
            raise BadRow("events[].input[].content is neither text nor parts")
        shaped["content"] = content
        for key in ("tool_call_id", "name"):
            if isinstance(message.get(key), str):
                shaped[key] = message[key]
        if message["role"] == "tool" and isinstance(message.get("function"), str):
            shaped["name"] = message["function"]
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            shaped["tool_calls"] = [self._call(call, ours, at, where) for at, call in enumerate(calls)]
        return shaped

    def _call(self, call: Any, ours: str, number: int, where: str) -> dict[str, Any]:
        if not isinstance(call, dict):
            raise BadRow("events[].input[].tool_calls[] is not an object")
        at = f"{where}.tool_calls[{number}]"
        place = f"{ours}.tool_calls[{number}].function"
        if isinstance(call.get("function"), dict):
            return call
        self.prompt.paths[f"{place}.name"] = f"{at}.function"
        self.prompt.paths[f"{place}.arguments"] = f"{at}.arguments"
        arguments = self._resolved(call.get("arguments"), f"{place}.arguments", f"{at}.arguments")
        return {
            "id": call.get("id"),
            "type": "function",
            "function": {"name": call.get("function"), "arguments": arguments},
        }

    def _resolved(self, value: Any, ours: str, theirs: str) -> Any:
        """`value` with references to attachments replaced; their paths lead to the attachment."""
        if isinstance(value, str) and value.startswith(REFERENCES):
            key = value.partition("://")[2]
            text = self._attachments.get(key)
            if not isinstance(text, str):
                self.prompt.incomplete = "an attachment is missing"
                return value
            self.prompt.paths[ours] = f"{self._attachments_path}.{key}"
            return text
        if isinstance(value, list):
            return [self._resolved(v, f"{ours}[{at}]", f"{theirs}[{at}]") for at, v in enumerate(value)]
        if isinstance(value, dict):
            return {key: self._resolved(v, f"{ours}.{key}", f"{theirs}.{key}") for key, v in value.items()}
        return value


FORMAT = InspectAI
