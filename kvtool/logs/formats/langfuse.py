"""langfuse: trace exports and observation rows; every GENERATION is one request."""

from collections.abc import Iterator
from typing import Any

from kvtool.logs import bodies, chat
from kvtool.logs.chat import Prompt
from kvtool.logs.fields import count_or_none, microseconds, named, structured
from kvtool.logs.format import BadRow, Format
from kvtool.requests import Message, Request, Source

ROLES = {"human": "user", "ai": "assistant", "model": "assistant"}


class Langfuse(Format):
    """A row is a trace with `observations`, or one of them; `input` is JSON, JSON in a string, or text."""

    name = "langfuse"
    rank = 70

    @classmethod
    def claims(cls, row: Any) -> bool:
        """Observations with Langfuse's upper-case `type`."""
        if not isinstance(row, dict):
            return False
        observations = row.get("observations")
        rows = observations if isinstance(observations, list) else [row]
        return any(_is_observation(one) for one in rows)

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """Generations in the order of the file."""
        if not isinstance(row, dict):
            raise BadRow("the row is not an object")
        observations = row.get("observations")
        if isinstance(observations, list):
            trace = row.get("trace") if isinstance(row.get("trace"), dict) else row
            for index, one in enumerate(observations):
                if not isinstance(one, dict):
                    raise BadRow("observations[] is not an object")
                yield from _generation(one, trace, f"observations[{index}]", source)
        else:
            yield from _generation(row, row, "", source)


def _is_observation(row: Any) -> bool:
    return isinstance(row, dict) and row.get("type") in ("GENERATION", "SPAN", "EVENT", "AGENT", "CHAIN")


def _generation(row: dict[str, Any], trace: Any, path: str, source: Source) -> Iterator[Request]:
    if row.get("type") != "GENERATION":
        return
    value, step = structured(row.get("input"))
    again, second = structured(value) if isinstance(value, str) else (value, "")
    where = chat.join(path, "input") + step + second
    if again is None:
        raise BadRow("input is missing")
    usage, _ = structured(row.get("usageDetails", row.get("usage")))
    prompt = None if isinstance(again, str) else _prompt(again, where)
    answer, _ = structured(row.get("output"))
    output, output_tokens = bodies.answer_of(answer)
    paths = prompt.paths if prompt else {"text": where}
    own = next((key for key in ("model", "providedModelName") if named(row, (key,))), None)
    if own is not None and not (prompt and prompt.model):
        paths["model"] = chat.join(path, own)
    yield Request(
        id=named(row, ("id",)) or f"{source.file}:{source.row}-{path}",
        source=source,
        arrival=microseconds(row.get("startTime", row.get("start_time"))),
        session=named(trace, ("sessionId", "session_id"))
        or named(row, ("sessionId", "traceId", "trace_id"))
        or named(trace, ("id",)),
        model=(prompt.model if prompt else None) or (named(row, (own,)) if own else None),
        messages=prompt.messages if prompt else None,
        tools=prompt.tools if prompt else None,
        text=again if prompt is None else None,
        output=output,
        output_tokens=(count_or_none(usage.get("output")) if isinstance(usage, dict) else None)
        or output_tokens,
        paths=paths,
        incomplete=prompt.incomplete if prompt else None,
    )


def _prompt(value: Any, where: str) -> Prompt:
    if isinstance(value, dict):
        if bodies.api_of(value) in ("gemini", "anthropic", "responses"):
            return bodies.prompt_of(value, where)
        messages, at = value.get("messages"), f"{where}.messages"
        tools = value.get("tools")
    else:
        messages, at, tools = value, where, None
    if not isinstance(messages, list) or not messages:
        raise BadRow("input holds no messages")
    if len(messages) == 1 and isinstance(messages[0], list):  # LangChain batches of one
        messages, at = messages[0], f"{at}[0]"
    prompt = Prompt([])
    shaped: list[Message] = []
    found: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise BadRow("input[] is not an object")
        content = message.get("content")
        if message.get("role") == "tool" and isinstance(content, dict) and "function" in content:
            # Langfuse's LangChain handler appends the tool definitions as messages
            prompt.paths[f"tools[{len(found)}]"] = f"{at}[{index}].content"
            found.append(content)
            continue
        prompt.paths[f"messages[{len(shaped)}]"] = f"{at}[{index}]"
        shaped.append(_langchain(message, f"messages[{len(shaped)}]", f"{at}[{index}]", prompt.paths))
    prompt.messages = chat.chat_messages(shaped, "input", prompt.paths)
    if tools:
        prompt.paths["tools"] = f"{where}.tools"
        found = chat.chat_tools(tools, "input.tools")
    prompt.tools = chat.chat_tools(found, "input") if found else None
    return prompt


def _langchain(message: Message, ours: str, theirs: str, paths: dict[str, str]) -> Message:
    """LangChain's own names for roles and tool calls, put into OpenAI's."""
    role = message.get("role", message.get("type"))
    shaped = {**message, "role": ROLES.get(role, role) if isinstance(role, str) else role}
    extra = message.get("additional_kwargs")
    if not message.get("tool_calls") and isinstance(extra, dict) and extra.get("tool_calls"):
        shaped["tool_calls"] = extra["tool_calls"]
        paths[f"{ours}.tool_calls"] = f"{theirs}.additional_kwargs.tool_calls"
    return shaped


FORMAT = Langfuse
