"""Gemini generateContent bodies -> OpenAI chat messages and tools, with the way back for every field."""

import json
from collections.abc import Mapping
from typing import Any

from kvtool.logs.chat import Prompt, join
from kvtool.logs.fields import structured, text_or_none
from kvtool.logs.format import BadRow
from kvtool.requests import Message


def _get(value: Mapping[str, Any], *keys: str) -> tuple[Any, str]:
    """(the first of `keys` that is there, its name): the API accepts camelCase and snake_case."""
    for key in keys:
        if value.get(key) is not None:
            return value[key], key
    return None, keys[0]


def gemini_prompt(body: Mapping[str, Any], path: str) -> Prompt:
    """System instruction, contents and tools of a body that stands at `path` in its row."""
    prompt = Prompt([], model=text_or_none(body.get("model")))
    config, config_key = _get(body, "config", "generation_config")
    places: list[tuple[Mapping[str, Any], str]] = [(body, path)]
    if isinstance(config, dict):
        places.append((config, join(path, config_key)))
    for place, where in places:
        system, key = _get(place, "systemInstruction", "system_instruction")
        if system and not prompt.messages:
            _content(prompt, system, join(where, key), "system")
    contents, step = structured(body.get("contents"))
    at = join(path, "contents") + step
    if isinstance(contents, str | dict):
        _content(prompt, contents, at, "user")
    elif isinstance(contents, list):
        for index, content in enumerate(contents):
            _content(prompt, content, f"{at}[{index}]", "user")
    else:
        raise BadRow("contents is not a list")
    if not prompt.messages:
        raise BadRow("contents is empty")
    for place, where in places:
        if place.get("tools") and prompt.tools is None:
            prompt.tools = _tools(place["tools"], join(where, "tools"), prompt.paths)
    return prompt


def _tools(tools: Any, where: str, paths: dict[str, str]) -> list[dict[str, Any]]:
    if isinstance(tools, dict):
        entries = [(tools, where)]
    elif isinstance(tools, list):
        entries = [(tool, f"{where}[{index}]") for index, tool in enumerate(tools)]
    else:
        raise BadRow("tools is not a list")
    shaped: list[dict[str, Any]] = []
    own: list[tuple[dict[str, Any], str]] = []
    paths["tools"] = where
    for entry, at in entries:
        if not isinstance(entry, dict):
            raise BadRow("tools[] is not an object")
        functions, key = _get(entry, "functionDeclarations", "function_declarations")
        for index, function in enumerate(functions if isinstance(functions, list) else []):
            if not isinstance(function, dict):
                raise BadRow("tools[] is not an object")
            paths[f"tools[{len(shaped)}].function"] = f"{at}.{key}[{index}]"
            shaped.append({"type": "function", "function": function})
        own += [
            ({"type": name, name: value}, f"{at}.{name}")
            for name, value in entry.items()
            if name != key or not isinstance(functions, list)
        ]
    for tool, at in sorted(own, key=lambda one: str(one[0]["type"])):  # the API gives them no order
        paths[f"tools[{len(shaped)}]"] = at
        shaped.append(tool)
    return shaped


def _content(prompt: Prompt, content: Any, where: str, role: str) -> None:
    if isinstance(content, str):
        prompt.paths[f"messages[{len(prompt.messages)}].content"] = where
        prompt.messages.append({"role": role, "content": content})
        return
    if not isinstance(content, dict):
        raise BadRow("contents[] is not an object")
    if role != "system" and isinstance(content.get("role"), str):
        role = "assistant" if content["role"] == "model" else str(content["role"])
    parts = content.get("parts")
    if not isinstance(parts, list):
        raise BadRow("contents[].parts is not a list")
    message: Message | None = None
    for index, part in enumerate(parts):
        at = f"{where}.parts[{index}]"
        part = {"text": part} if isinstance(part, str) else part
        if not isinstance(part, dict):
            raise BadRow("contents[].parts[] is not an object")
        answer, key = _get(part, "functionResponse", "function_response")
        if isinstance(answer, dict):
            ours = f"messages[{len(prompt.messages)}]"
            prompt.paths[ours] = at
            prompt.paths[f"{ours}.content"] = f"{at}.{key}.response"
            prompt.messages.append(
                {
                    "role": "tool",
                    "name": str(answer.get("name", "")),
                    "content": _json(answer.get("response")),
                }
            )
            message = None
            continue
        if message is None:
            message = {"role": role, "content": []}
            prompt.paths[f"messages[{len(prompt.messages)}]"] = where
            prompt.paths[f"messages[{len(prompt.messages)}].content"] = f"{where}.parts"
            prompt.messages.append(message)
        _part(prompt, message, part, at)
    if not parts:
        prompt.messages.append({"role": role, "content": ""})


def _part(prompt: Prompt, message: Message, part: dict[str, Any], at: str) -> None:
    ours = f"messages[{len(prompt.messages) - 1}]"
    call, key = _get(part, "functionCall", "function_call")
    if isinstance(call, dict):
        calls = message.setdefault("tool_calls", [])
        where = f"{ours}.tool_calls[{len(calls)}].function"
        prompt.paths[where] = f"{at}.{key}"
        prompt.paths[f"{where}.arguments"] = f"{at}.{key}.args"
        function = {"name": call.get("name"), "arguments": call.get("args") or {}}
        calls.append({"id": call.get("id"), "type": "function", "function": function})
        return
    index = len(message["content"])
    prompt.paths[f"{ours}.content[{index}]"] = at
    if isinstance(part.get("text"), str):
        message["content"].append({"type": "text", "text": part["text"]})
    else:
        kind = next(iter(part), "part")
        message["content"].append({"type": kind, **part})


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def gemini_output(response: Any) -> tuple[Message | None, int | None]:
    """(assistant message, output tokens) of a generateContent response."""
    if not isinstance(response, dict):
        return None, None
    candidates = response.get("candidates")
    content = response.get("content")
    if isinstance(candidates, list) and candidates and isinstance(candidates[0], dict):
        content = candidates[0].get("content")
    if not isinstance(content, dict):
        return None, None
    prompt = Prompt([])
    _content(prompt, content, "", "assistant")
    usage, _ = _get(response, "usageMetadata", "usage_metadata")
    tokens = None
    if isinstance(usage, dict):
        tokens, _ = _get(usage, "candidatesTokenCount", "candidates_token_count")
    return (prompt.messages[0] if prompt.messages else None), tokens if isinstance(tokens, int) else None
