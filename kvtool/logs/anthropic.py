"""Anthropic Messages bodies -> OpenAI-shaped messages and tools, with the way back for every field."""

from collections.abc import Mapping
from typing import Any

from kvtool.logs.chat import Prompt, content_part, join
from kvtool.logs.fields import structured, text_or_none, tool_list
from kvtool.logs.format import BadRow
from kvtool.requests import Message

BLOCKS = frozenset(("tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use"))


def looks_anthropic(body: Mapping[str, Any]) -> bool:
    """Whether a body with `messages` speaks the Messages API and not chat completions."""
    if "system" in body or "anthropic_version" in body:
        return True
    tools = body.get("tools")
    if isinstance(tools, list) and any(isinstance(tool, dict) and "input_schema" in tool for tool in tools):
        return True
    messages, _ = structured(body.get("messages"))
    if not isinstance(messages, list):
        return False
    return any(_is_block(part) for message in messages for part in _parts(message))


def _parts(message: Any) -> list[Any]:
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, list) else []


def _is_block(part: Any) -> bool:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        return False
    return part["type"] in BLOCKS or (part["type"] in ("image", "document") and "source" in part)


def anthropic_prompt(body: Mapping[str, Any], path: str) -> Prompt:
    """System, messages and tools of a Messages body that stands at `path` in its row."""
    source, step = structured(body.get("messages"))
    where = join(path, "messages") + step
    prompt = Prompt([], model=text_or_none(body.get("model")))
    system, step = structured(body.get("system"))
    if isinstance(system, list) and not all(isinstance(part, dict) for part in system):
        raise BadRow("system[] is not an object")
    if system:
        if not isinstance(system, str | list):
            raise BadRow("system is neither text nor blocks")
        at = join(path, "system") + step
        prompt.paths["messages[0].content"] = at
        parts = system
        if isinstance(system, list):
            parts = [
                content_part(part, f"messages[0].content[{index}]", f"{at}[{index}]", prompt.paths)
                for index, part in enumerate(system)
            ]
        prompt.messages.append({"role": "system", "content": parts})
    if not isinstance(source, list):
        raise BadRow(f"{where} is not a list")
    if not source:
        raise BadRow(f"{where} is empty")
    for index, message in enumerate(source):
        add_message(prompt, message, f"{where}[{index}]")
    prompt.tools = anthropic_tools(body.get("tools"), join(path, "tools"), prompt.paths)
    return prompt


def anthropic_tools(tools: Any, where: str, paths: dict[str, str]) -> list[dict[str, Any]] | None:
    """Tools with an `input_schema` in OpenAI's shape; the provider's own tools as they are."""
    tools, where = tool_list(tools, where, paths)
    if not tools:
        return None
    shaped: list[dict[str, Any]] = []
    for index, tool in enumerate(tools):
        plain = {key: value for key, value in tool.items() if key != "cache_control"}
        if "input_schema" not in plain:
            if not isinstance(plain.get("function", {}), dict):
                raise BadRow(f"{where}[].function is not an object")
            shaped.append(plain)
            continue
        function = {
            ("parameters" if key == "input_schema" else key): value
            for key, value in plain.items()
            if key != "type"
        }
        shaped.append({"type": "function", "function": function})
        paths[f"tools[{index}].function"] = f"{where}[{index}]"
        paths[f"tools[{index}].function.parameters"] = f"{where}[{index}].input_schema"
    return shaped


def add_message(prompt: Prompt, message: Any, where: str) -> None:
    """Append one Messages-API message that stands at `where`: tool results become tool messages."""
    if not isinstance(message, dict):
        raise BadRow("messages[] is not an object")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise BadRow("messages[].role is missing")
    if content is None or isinstance(content, str):
        prompt.paths[f"messages[{len(prompt.messages)}]"] = where
        prompt.messages.append({"role": role, "content": content})
        return
    if not isinstance(content, list):
        raise BadRow("messages[].content is neither text nor blocks")
    current: Message | None = None
    for index, block in enumerate(content):
        at = f"{where}.content[{index}]"
        if not isinstance(block, dict | str):
            raise BadRow("messages[].content[] is not an object")
        if isinstance(block, dict) and block.get("type") == "tool_result":
            _tool_result(prompt, block, at)
            current = None
            continue
        if current is None:
            current = {"role": role, "content": []}
            prompt.paths[f"messages[{len(prompt.messages)}]"] = where
            prompt.messages.append(current)
        _block(prompt, current, block, at)
    if current is None and not content:
        prompt.paths[f"messages[{len(prompt.messages)}]"] = where
        prompt.messages.append({"role": role, "content": ""})


def _tool_result(prompt: Prompt, block: dict[str, Any], at: str) -> None:
    ours = f"messages[{len(prompt.messages)}]"
    content = block.get("content")
    if isinstance(content, list):
        content = [
            content_part(part, f"{ours}.content[{index}]", f"{at}.content[{index}]", prompt.paths)
            for index, part in enumerate(content)
        ]
    elif content is not None and not isinstance(content, str):
        raise BadRow("tool_result content is neither text nor blocks")
    prompt.paths[ours] = at
    message: Message = {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}
    if block.get("is_error"):
        message["is_error"] = True
    prompt.messages.append(message)


def _block(prompt: Prompt, message: Message, block: Any, at: str) -> None:
    ours = f"messages[{len(prompt.messages) - 1}]"
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "tool_use":
        calls = message.setdefault("tool_calls", [])
        number = len(calls)
        calls.append(
            {
                "id": block.get("id"),
                "type": "function",
                "function": {"name": block.get("name"), "arguments": block.get("input")},
            }
        )
        prompt.paths[f"{ours}.tool_calls[{number}].function"] = at
        prompt.paths[f"{ours}.tool_calls[{number}].function.arguments"] = f"{at}.input"
        prompt.paths[f"{ours}.tool_calls[{number}].id"] = f"{at}.id"
    elif kind == "thinking" and isinstance(block.get("thinking"), str) and not message["content"]:
        earlier = message.get("reasoning_content")
        message["reasoning_content"] = f"{earlier}\n{block['thinking']}" if earlier else block["thinking"]
        prompt.paths.setdefault(f"{ours}.reasoning_content", f"{at}.thinking")
    else:
        index = len(message["content"])
        prompt.paths[f"{ours}.content[{index}]"] = at
        message["content"].append(content_part(block, f"{ours}.content[{index}]", at, prompt.paths))


def anthropic_output(response: Any) -> tuple[Message | None, int | None]:
    """(assistant message, output tokens) of a Messages response."""
    if not isinstance(response, dict) or not isinstance(response.get("content"), list):
        return None, None
    prompt = Prompt([])
    add_message(prompt, {"role": "assistant", "content": response["content"]}, "")
    usage = response.get("usage")
    tokens = usage.get("output_tokens") if isinstance(usage, dict) else None
    return (prompt.messages[0] if prompt.messages else None), tokens if isinstance(tokens, int) else None
