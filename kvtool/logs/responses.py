"""OpenAI Responses bodies -> OpenAI chat messages and tools, with the way back for every field."""

from collections.abc import Mapping
from typing import Any

from kvtool.logs.chat import Prompt, content_part, join
from kvtool.logs.fields import structured, text_or_none, tool_list
from kvtool.logs.format import BadRow
from kvtool.requests import Message

ENVELOPE = frozenset(("id", "status", "cache_control", "created_by"))
"""Fields of an item that do not reach the model."""


def looks_responses(body: Mapping[str, Any]) -> bool:
    """Whether a body speaks the Responses API."""
    value, _ = structured(body.get("input"))
    if isinstance(value, list) and value:
        return isinstance(value[0], dict) and ("role" in value[0] or "type" in value[0])
    return isinstance(value, str) and ("instructions" in body or "previous_response_id" in body)


def responses_prompt(body: Mapping[str, Any], path: str) -> Prompt:
    """Instructions, items and tools of a Responses body that stands at `path` in its row."""
    prompt = Prompt([], model=text_or_none(body.get("model")))
    instructions = body.get("instructions")
    if instructions is not None and instructions != "":
        if not isinstance(instructions, str):
            raise BadRow("instructions is not text")
        prompt.paths["messages[0].content"] = join(path, "instructions")
        prompt.messages.append({"role": "system", "content": instructions})
    value, step = structured(body.get("input"))
    where = join(path, "input") + step
    if isinstance(value, str):
        prompt.paths[f"messages[{len(prompt.messages)}].content"] = where
        prompt.messages.append({"role": "user", "content": value})
    elif isinstance(value, list):
        items = _Items(prompt)
        for index, item in enumerate(value):
            items.add(item, f"{where}[{index}]")
        items.close()
    else:
        raise BadRow(f"{where} is neither text nor a list")
    if not prompt.messages:
        raise BadRow(f"{where} is empty")
    prompt.tools = responses_tools(body.get("tools"), join(path, "tools"), prompt.paths)
    for key in ("previous_response_id", "conversation", "prompt"):
        if body.get(key):
            prompt.incomplete = f"earlier turns are kept by the provider ({key})"
    return prompt


def responses_tools(tools: Any, where: str, paths: dict[str, str]) -> list[dict[str, Any]] | None:
    """Function tools in the chat API's shape; the provider's own tools as they are."""
    tools, where = tool_list(tools, where, paths)
    if not tools:
        return None
    shaped: list[dict[str, Any]] = []
    for index, tool in enumerate(tools):
        if not isinstance(tool.get("function", {}), dict):
            raise BadRow(f"{where}[].function is not an object")
        if "function" in tool or not isinstance(tool.get("name"), str):
            shaped.append(tool)
            continue
        function = {key: value for key, value in tool.items() if key != "type"}
        shaped.append({"type": "function", "function": function})
        paths[f"tools[{index}].function"] = f"{where}[{index}]"
    return shaped


class _Items:
    """Folds items into messages: calls and reasoning join the assistant's message around them."""

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt
        self.turn: Message | None = None
        self.hidden: list[tuple[Message, str, dict[str, Any], str]] = []

    def add(self, item: Any, where: str) -> None:
        if not isinstance(item, dict):
            raise BadRow("input[] is not an object")
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind == "message":
            self._message(item, where)
        elif kind == "function_call":
            self._call(item, where)
        elif kind == "function_call_output":
            self._output(item, where)
        elif kind == "reasoning":
            self._reasoning(item, where)
        elif kind == "item_reference":
            self.prompt.incomplete = "earlier turns are kept by the provider (item_reference)"
        elif isinstance(kind, str):
            self._part(item, where)
        else:
            raise BadRow("input[].type is missing")

    def close(self) -> None:
        """Put encrypted reasoning behind its message's content: it reaches the model, unreadable to us."""
        paths = self.prompt.paths
        for message, ours, part, where in self.hidden:
            content = message["content"]
            if not isinstance(content, list):
                paths[f"{ours}.content[0].text"] = paths.get(f"{ours}.content", where)
                content = [{"type": "text", "text": content}] if content else []
            paths[f"{ours}.content[{len(content)}]"] = where
            message["content"] = [*content, part]

    def _open(self, role: str, where: str) -> tuple[Message, str]:
        message: Message = {"role": role, "content": ""}
        ours = f"messages[{len(self.prompt.messages)}]"
        self.prompt.paths[ours] = where
        self.prompt.messages.append(message)
        self.turn = message if role == "assistant" else None
        return message, ours

    def _assistant(self, where: str) -> tuple[Message, str]:
        """The assistant's message that is being built, or a new one."""
        if self.turn is None:
            return self._open("assistant", where)
        return self.turn, f"messages[{len(self.prompt.messages) - 1}]"

    def _message(self, item: dict[str, Any], where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str):
            raise BadRow("input[].role is missing")
        turn = self.turn
        fresh = role != "assistant" or turn is None or bool(turn["content"]) or "tool_calls" in turn
        message, ours = self._open(role, where) if fresh else self._assistant(where)
        self.prompt.paths[f"{ours}.content"] = f"{where}.content"
        content = item.get("content")
        if isinstance(content, list):
            message["content"] = [
                content_part(part, f"{ours}.content[{at}]", f"{where}.content[{at}]", self.prompt.paths)
                for at, part in enumerate(content)
            ]
        elif content is None or isinstance(content, str):
            message["content"] = content
        else:
            raise BadRow("input[].content is neither text nor parts")

    def _call(self, item: dict[str, Any], where: str) -> None:
        message, ours = self._assistant(where)
        calls = message.setdefault("tool_calls", [])
        number = len(calls)
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        calls.append({"id": item.get("call_id"), "type": "function", "function": function})
        self.prompt.paths[f"{ours}.tool_calls[{number}].function"] = where
        self.prompt.paths[f"{ours}.tool_calls[{number}].id"] = f"{where}.call_id"

    def _output(self, item: dict[str, Any], where: str) -> None:
        message, ours = self._open("tool", where)
        message["tool_call_id"] = item.get("call_id")
        self.prompt.paths[f"{ours}.content"] = f"{where}.output"
        output = item.get("output")
        if isinstance(output, list):
            message["content"] = [
                content_part(part, f"{ours}.content[{at}]", f"{where}.output[{at}]", self.prompt.paths)
                for at, part in enumerate(output)
            ]
        else:
            message["content"] = output

    def _reasoning(self, item: dict[str, Any], where: str) -> None:
        turn = self.turn
        if turn is not None and (turn["content"] or "tool_calls" in turn):
            self.turn = None
        message, ours = self._assistant(where)
        for key in ("content", "summary"):
            texts = item.get(key)
            if not isinstance(texts, list):
                continue
            for at, part in enumerate(texts):
                text = part.get("text") if isinstance(part, dict) else part
                if isinstance(text, str) and text:
                    earlier = message.get("reasoning_content")
                    message["reasoning_content"] = f"{earlier}\n{text}" if earlier else text
                    self.prompt.paths.setdefault(f"{ours}.reasoning_content", f"{where}.{key}[{at}].text")
        if item.get("encrypted_content"):
            hidden = {"type": "encrypted_reasoning", "data": item["encrypted_content"]}
            self.hidden.append((message, ours, hidden, where))

    def _part(self, item: dict[str, Any], where: str) -> None:
        """Any other item (a server tool's call, a computer's output) stands as one part of its kind."""
        role = "tool" if str(item["type"]).endswith("_output") else "assistant"
        message, ours = self._open(role, where)
        self.turn = None
        if role == "tool":
            message["tool_call_id"] = item.get("call_id")
        message["content"] = [{key: value for key, value in item.items() if key not in ENVELOPE}]
        self.prompt.paths[f"{ours}.content[0]"] = where


def responses_output(response: Any) -> tuple[Message | None, int | None]:
    """(assistant message, output tokens) of a Responses response."""
    if not isinstance(response, dict) or not isinstance(response.get("output"), list):
        return None, None
    prompt = Prompt([])
    items = _Items(prompt)
    for item in response["output"]:
        items.add(item, "")
    items.close()
    usage = response.get("usage")
    tokens = usage.get("output_tokens") if isinstance(usage, dict) else None
    return (prompt.messages[-1] if prompt.messages else None), tokens if isinstance(tokens, int) else None
