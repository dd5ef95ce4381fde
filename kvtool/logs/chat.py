"""OpenAI chat bodies and responses -> the messages and tools of a Request, nothing lost."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvtool.logs.fields import count_or_none, structured, text_or_none
from kvtool.logs.format import BadRow
from kvtool.requests import Message

ENVELOPE_KEYS = (
    "request",
    "body",
    "request_body",
    "requestBody",
    "payload",
    "parsed_body",
    "json",
    "kwargs",
    "input",
    "data",
    "params",
)
OUTPUT_IDS = ("token_ids", "output_token_ids", "output_ids")
"""vLLM's return_token_ids fills a choice's first; SGLang has the last beside the text."""
RESPONSE_KEYS = ("response", "response_body", "responseBody", "output", "completion", "result")


@dataclass(slots=True)
class Prompt:
    """The part of a request that a body gives. `paths` leads from our fields to the body's row."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    model: str | None = None
    paths: dict[str, str] = field(default_factory=dict)
    incomplete: str | None = None


def join(path: str, key: str) -> str:
    """`path.key`, or `key` at the top."""
    return f"{path}.{key}" if path else key


def find_body(row: Any, wanted: tuple[str, ...], depth: int = 3) -> tuple[dict[str, Any], str] | None:
    """The object with one of the `wanted` keys, in the row or in an envelope, and its path."""
    if not isinstance(row, dict):
        return None
    if any(key in row for key in wanted):
        return row, ""
    if depth:
        for key in ENVELOPE_KEYS:
            if key in row:
                inner, step = structured(row[key])
                found = find_body(inner, wanted, depth - 1)
                if found is not None:
                    prefix = key + step
                    return found[0], prefix + ("." + found[1] if found[1] else "")
    return None


def chat_prompt(body: Mapping[str, Any], path: str) -> Prompt:
    """Messages, tools and model of a chat completions body that stands at `path` in its row."""
    messages, step = structured(body.get("messages"))
    paths: dict[str, str] = {}
    where = join(path, "messages") + step
    if where != "messages":
        paths["messages"] = where
    prompt = Prompt(chat_messages(messages, where, paths), model=text_or_none(body.get("model")), paths=paths)
    tools, step = structured(body.get("tools"))
    if tools is not None and tools != []:
        where = join(path, "tools") + step
        if where != "tools":
            paths["tools"] = where
        prompt.tools = chat_tools(tools, where)
    functions, step = structured(body.get("functions"))
    if not prompt.tools and functions is not None and functions != []:
        where = join(path, "functions") + step
        prompt.tools = [
            {"type": "function", "function": function} for function in chat_tools(functions, where)
        ]
        paths["tools"] = where
        for index in range(len(prompt.tools)):
            paths[f"tools[{index}].function"] = f"{where}[{index}]"
    return prompt


def chat_tools(tools: Any, where: str) -> list[dict[str, Any]]:
    """Tools as a list of objects, `cache_control` taken out: it does not reach the model."""
    if not isinstance(tools, list):
        raise BadRow(f"{where} is not a list")
    for tool in tools:
        if not isinstance(tool, dict) or not isinstance(tool.get("function", {}), dict):
            raise BadRow(f"{where}[] is not an object")
    return [_without_cache_control(tool) for tool in tools]


def chat_messages(messages: Any, where: str, paths: dict[str, str]) -> list[Message]:
    """Checked messages. `paths` is told about fields that stand under another name in the source."""
    if not isinstance(messages, list):
        raise BadRow(f"{where} is not a list")
    if not messages:
        raise BadRow(f"{where or 'the row'} is empty")
    return [_message(message, index, where, paths) for index, message in enumerate(messages)]


def _message(message: Any, index: int, where: str, paths: dict[str, str]) -> Message:
    if not isinstance(message, dict):
        raise BadRow(f"{where}[] is not an object")
    role = message.get("role")
    if not isinstance(role, str):
        raise BadRow(f"{where}[].role is missing" if role is None else f"{where}[].role is not a string")
    check_calls(message, f"{where}[]")
    content = message.get("content")
    changed: Message = {}
    if isinstance(content, str):
        pass
    elif isinstance(content, list):
        parts = [
            content_part(part, f"messages[{index}].content[{at}]", f"{where}[{index}].content[{at}]", paths)
            for at, part in enumerate(content)
        ]
        if any(new is not old for new, old in zip(parts, content, strict=True)):
            changed["content"] = parts
    elif isinstance(content, dict):
        part = content_part(content, f"messages[{index}].content[0]", f"{where}[{index}].content", paths)
        paths[f"messages[{index}].content[0]"] = f"{where}[{index}].content"
        changed["content"] = [part]
    elif content is not None:
        raise BadRow(f"{where}[].content is neither text nor parts")
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal and not content:
        changed["content"] = refusal
        paths[f"messages[{index}].content"] = f"{where}[{index}].refusal"
    if "reasoning_content" not in message and isinstance(message.get("reasoning"), str):
        changed["reasoning_content"] = message["reasoning"]
        paths[f"messages[{index}].reasoning_content"] = f"{where}[{index}].reasoning"
    if "cache_control" not in message and not changed:
        return message
    copied = {**message, **changed}
    copied.pop("cache_control", None)
    return copied


def check_calls(message: Mapping[str, Any], where: str) -> None:
    """BadRow unless tool calls have the shape that templates rely on."""
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list):
        raise BadRow(f"{where}.tool_calls is not a list")
    for call in calls:
        if not isinstance(call, dict):
            raise BadRow(f"{where}.tool_calls[] is not an object")
        if not isinstance(call.get("function") or {}, dict):
            raise BadRow(f"{where}.tool_calls[].function is not an object")


def content_part(part: Any, ours: str, theirs: str, paths: dict[str, str]) -> Any:
    """A part as templates read it: text of every kind as `text`, the rest without cache_control."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise BadRow("a content part is neither text nor an object")
    if isinstance(part.get("text"), str):
        return part if "cache_control" not in part else _without_cache_control(part)
    for key in ("refusal", "thinking", "reasoning"):
        if isinstance(part.get(key), str):
            paths[f"{ours}.text"] = f"{theirs}.{key}"
            return {"type": "text", "text": part[key]}
    return part if "cache_control" not in part else _without_cache_control(part)


def _without_cache_control(value: dict[str, Any]) -> dict[str, Any]:
    if "cache_control" not in value:
        return value
    return {key: item for key, item in value.items() if key != "cache_control"}


def chat_output(response: Any) -> tuple[Message | str | None, int | None]:
    """(assistant message or text, completion tokens) of a response under the usual shapes."""
    response, _ = structured(response)
    if isinstance(response, str):
        return response or None, None
    if not isinstance(response, dict):
        return None, None
    inner, _ = structured(response.get("body"))
    if isinstance(inner, dict) and "choices" not in response:
        response = inner
    usage = response.get("usage")
    tokens = None
    if isinstance(usage, dict):
        tokens = count_or_none(usage.get("completion_tokens", usage.get("output_tokens")))
    choices = response.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        message = choices[0].get("message")
        if isinstance(message, dict):
            return message, tokens
        text = choices[0].get("text")
        return (text if isinstance(text, str) else None), tokens
    if isinstance(response.get("message"), dict):
        return response["message"], tokens
    if isinstance(response.get("role"), str):
        return {key: value for key, value in response.items() if key != "usage"}, tokens
    return None, tokens


def generated_ids(response: Any) -> tuple[int, ...] | None:
    """Token ids of the first answer, where the server was asked for them; None where it was not."""
    response, _ = structured(response)
    if not isinstance(response, dict):
        return None
    choices = response.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    for place in (first if isinstance(first, dict) else {}, response):
        for key in OUTPUT_IDS:
            ids = place.get(key)
            if isinstance(ids, list) and ids and all(type(one) is int and 0 <= one < 2**32 for one in ids):
                return tuple(ids)
    return None


def response_of(row: Mapping[str, Any]) -> Any:
    """The response beside a request, under the usual names."""
    for key in RESPONSE_KEYS:
        if row.get(key) is not None:
            return row[key]
    return None
