"""The GenAI conventions' messages -> OpenAI chat messages: parts, flattened attributes, events."""

import re
from typing import Any

from kvtool.logs.bodies import as_text
from kvtool.logs.chat import Prompt, chat_messages, chat_tools
from kvtool.logs.fields import structured
from kvtool.logs.format import BadRow
from kvtool.logs.otlp import Attributes
from kvtool.requests import Message

CUT = "the recorded messages are cut off"
_MESSAGE = re.compile(r"(?:llm\.input_messages\.(\d+)\.message|gen_ai\.prompt\.(\d+))\.(.+)")
_TOOL = re.compile(r"(?:llm\.tools\.(\d+)\.tool\.json_schema|llm\.request\.functions\.(\d+)\.(\w+))")
_CALL = re.compile(r"tool_calls\.(\d+)\.(?:tool_call\.)?(?:function\.)?(id|name|arguments)")
_PART = re.compile(r"contents\.(\d+)\.message_content\.(.+)")


def from_parts(attributes: Attributes, key: str = "gen_ai.input.messages") -> Prompt:
    """Messages of `{role, parts}` under one attribute, with system instructions and tool definitions."""
    prompt = Prompt([])
    raw = attributes.get(key)
    value, step = structured(raw)
    where = attributes.place(key) + step
    if isinstance(value, str):
        # The SDK's length limit cuts JSON in the middle: what is left is shown, not judged.
        prompt.paths["text"] = where
        prompt.messages.append({"content": value})
        prompt.incomplete = CUT
        return prompt
    if not isinstance(value, list) or not value:
        raise BadRow(f"{key} is not a list")
    if key == "gen_ai.input.messages" and "gen_ai.system_instructions" in attributes.values:
        system, at = structured(attributes.get("gen_ai.system_instructions"))
        place = attributes.place("gen_ai.system_instructions") + at
        parts = system if isinstance(system, list) else [{"type": "text", "content": as_text(system)}]
        _message(prompt, {"role": "system", "parts": parts}, place, place)
    for index, message in enumerate(value):
        if not isinstance(message, dict):
            raise BadRow(f"{key}[] is not an object")
        _message(prompt, message, f"{where}[{index}]", f"{where}[{index}].parts")
    tools, at = structured(attributes.get("gen_ai.tool.definitions"))
    if isinstance(tools, list) and tools and key == "gen_ai.input.messages":
        _tools(prompt, tools, attributes.place("gen_ai.tool.definitions") + at)
    return prompt


def _tools(prompt: Prompt, tools: list[Any], where: str) -> None:
    prompt.paths["tools"] = where
    prompt.tools = []
    for index, tool in enumerate(chat_tools(tools, "gen_ai.tool.definitions")):
        if "function" not in tool and "name" in tool:
            prompt.paths[f"tools[{index}].function"] = f"{where}[{index}]"
            inner = {name: value for name, value in tool.items() if name != "type"}
            tool = {"type": "function", "function": inner}
        prompt.tools.append(tool)


def _message(prompt: Prompt, message: dict[str, Any], where: str, parts_at: str) -> None:
    role, parts = message.get("role"), message.get("parts")
    if not isinstance(role, str):
        raise BadRow("a message without a role")
    if not isinstance(parts, list):
        if not isinstance(message.get("content"), str | list | None):
            raise BadRow("a message whose content is neither text nor parts")
        prompt.paths[f"messages[{len(prompt.messages)}]"] = where
        prompt.messages.extend(chat_messages([message], "messages", {}))
        return
    current: Message | None = None
    for index, part in enumerate(parts):
        at = f"{parts_at}[{index}]"
        part = {"type": "text", "content": part} if isinstance(part, str) else part
        if not isinstance(part, dict):
            raise BadRow("a message's part is not an object")
        kind = part.get("type")
        if kind == "tool_call_response":
            field = "response" if "response" in part else "result"
            prompt.paths[f"messages[{len(prompt.messages)}]"] = where
            prompt.paths[f"messages[{len(prompt.messages)}].content"] = f"{at}.{field}"
            result: Message = {"role": "tool", "content": as_text(part.get(field))}
            prompt.messages.append({**result, "tool_call_id": part.get("id")})
            current = None
            continue
        if current is None:
            current = {"role": role, "content": ""}
            prompt.paths[f"messages[{len(prompt.messages)}]"] = where
            prompt.messages.append(current)
        _part(prompt, current, part, at)
    if not parts:
        prompt.messages.append({"role": role, "content": ""})


def _part(prompt: Prompt, message: Message, part: dict[str, Any], at: str) -> None:
    ours = f"messages[{len(prompt.messages) - 1}]"
    kind = part.get("type")
    if kind == "tool_call":
        calls = message.setdefault("tool_calls", [])
        place = f"{ours}.tool_calls[{len(calls)}].function"
        prompt.paths[place] = at
        function = {"name": part.get("name"), "arguments": part.get("arguments")}
        calls.append({"id": part.get("id"), "type": "function", "function": function})
        return
    if kind in ("reasoning", "thinking") and isinstance(part.get("content"), str) and not message["content"]:
        earlier = message.get("reasoning_content")
        message["reasoning_content"] = f"{earlier}\n{part['content']}" if earlier else part["content"]
        prompt.paths.setdefault(f"{ours}.reasoning_content", f"{at}.content")
        return
    text = part.get("content") if kind == "text" else None
    if isinstance(text, str) and message["content"] == "":
        message["content"] = text
        prompt.paths[f"{ours}.content"] = f"{at}.content"
        return
    if isinstance(message["content"], str):
        first = message["content"]
        message["content"] = [{"type": "text", "text": first}] if first else []
        if first:
            prompt.paths[f"{ours}.content[0].text"] = prompt.paths[f"{ours}.content"]
        prompt.paths[f"{ours}.content"] = at.rpartition("[")[0]
    index = len(message["content"])
    prompt.paths[f"{ours}.content[{index}]"] = at
    if isinstance(text, str):
        prompt.paths[f"{ours}.content[{index}].text"] = f"{at}.content"
        message["content"].append({"type": "text", "text": text})
    else:
        message["content"].append(part)


def flattened(attributes: Attributes) -> Prompt | None:
    """Messages and tools spread over numbered attributes; gaps in the numbers mean dropped ones."""
    messages: dict[int, dict[str, tuple[Any, str]]] = {}
    tools: dict[int, dict[str, tuple[Any, str]]] = {}
    for key, entry in attributes.values.items():
        if match := _MESSAGE.fullmatch(key):
            messages.setdefault(int(match[1] or match[2]), {})[match[3]] = entry
        elif match := _TOOL.fullmatch(key):
            tools.setdefault(int(match[1] or match[2]), {})[match[3] or "schema"] = entry
    if not messages:
        return None
    prompt = Prompt([])
    for number in sorted(messages):
        _flat_message(prompt, messages[number])
    if tools:
        prompt.tools = [
            _flat_tool(prompt, tools[number], index) for index, number in enumerate(sorted(tools))
        ]
    for numbers in (messages, tools):
        if numbers and sorted(numbers) != list(range(len(numbers))):
            prompt.incomplete = "attributes were dropped at the SDK's limit"
    return prompt


def _flat_message(prompt: Prompt, fields: dict[str, tuple[Any, str]]) -> None:
    ours = f"messages[{len(prompt.messages)}]"
    role, place = fields.get("role", (None, ""))
    if isinstance(role, str):
        prompt.paths[ours] = place.rpartition(".value")[0]
    else:
        role, prompt.incomplete = "user", "attributes were dropped at the SDK's limit"
    message: Message = {"role": role, "content": None}
    parts: dict[int, dict[str, tuple[Any, str]]] = {}
    calls: dict[int, dict[str, tuple[Any, str]]] = {}
    for key, (value, place) in fields.items():
        if key == "content":
            message["content"] = as_text(value)
            prompt.paths[f"{ours}.content"] = place
        elif key in ("tool_call_id", "name"):
            message[key] = as_text(value)
        elif match := _CALL.fullmatch(key):
            calls.setdefault(int(match[1]), {})[match[2]] = (value, place)
        elif match := _PART.fullmatch(key):
            parts.setdefault(int(match[1]), {})[match[2]] = (value, place)
    for index, number in enumerate(sorted(calls)):
        call, place = calls[number], f"{ours}.tool_calls[{index}].function"
        function = {name: call[name][0] for name in ("name", "arguments") if name in call}
        prompt.paths.update({f"{place}.{name}": call[name][1] for name in function})
        call_id = call.get("id", (None, ""))[0]
        message.setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})
    if parts and message["content"] is None:
        content: list[Any] = []
        for index, number in enumerate(sorted(parts)):
            part = {name: value for name, (value, _) in parts[number].items()}
            if "text" in parts[number]:
                prompt.paths[f"{ours}.content[{index}].text"] = parts[number]["text"][1]
                part["text"] = as_text(part["text"])
            content.append(part)
        message["content"] = content
    prompt.messages.append(message)


def _flat_tool(prompt: Prompt, fields: dict[str, tuple[Any, str]], index: int) -> dict[str, Any]:
    if "schema" in fields:
        value, place = fields["schema"]
        tool, step = structured(value)
        prompt.paths[f"tools[{index}]"] = place + step
        if not isinstance(tool, dict):
            prompt.incomplete = CUT
            return {"type": "function", "function": {"name": as_text(value)}}
        return chat_tools([tool], "llm.tools")[0]
    function = {name: structured(value)[0] for name, (value, _) in fields.items()}
    return {"type": "function", "function": function}


def from_event(name: str, body: Any) -> Message | None:
    """The message of a `gen_ai.user.message`-like event; of `gen_ai.choice` the answer."""
    if not isinstance(body, dict):
        return None
    if name == "gen_ai.choice":
        message, _ = structured(body.get("message"))
        return message if isinstance(message, dict) else {"role": "assistant", "content": None}
    role = name.removeprefix("gen_ai.").removesuffix(".message")
    shaped: Message = {"role": body.get("role", role), "content": body.get("content")}
    calls, _ = structured(body.get("tool_calls"))
    if calls:
        shaped["tool_calls"] = calls
    if role == "tool":
        shaped["tool_call_id"] = body.get("id")
    return chat_messages([shaped], "messages", {})[0]
