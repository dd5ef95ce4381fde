"""OpenAI's answer objects, streamed and whole, from the deltas of some generations."""

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvtool.engine.compute.logprobs import TokenLogprob
from kvtool.engine.serving.generation import Delta, FinishReason, Usage
from kvtool.engine.serving.text import StopFilter
from kvtool.engine.serving.tool_calls import OPEN, ToolCall, parse_tool_calls

Spelled = Callable[[int], bytes]
"""The bytes of a token."""


def token_text(spelled: bytes) -> str:
    """A token as OpenAI names it: its text, or `bytes:\\xe6\\xbc` where that is not whole characters."""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def usage_object(usages: Sequence[Usage], choices_per_prompt: int) -> dict[str, Any]:
    """Token counts; a prompt counts once however many choices it has, with what its first one found."""
    firsts = usages[::choices_per_prompt]
    prompt = sum(usage.prompt for usage in firsts)
    completion = sum(usage.completion for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached for usage in firsts)},
    }


@dataclass(slots=True)
class Choice:
    """What a choice has said so far. `gate` holds tool calls back until they are whole."""

    text: str = ""
    finish: FinishReason | None = None
    usage: Usage | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    gate: StopFilter = field(default_factory=lambda: StopFilter([OPEN]))
    shown: int = 0
    started: bool = False

    def add(self, delta: Delta) -> None:
        """Take in what a step brought."""
        self.text += delta.text
        self.logprobs += delta.logprobs
        if delta.finish is not None:
            self.finish, self.usage = delta.finish, delta.usage


class ChatAnswer:
    """chat.completion and chat.completion.chunk objects. `tools`: whether to look for tool calls."""

    def __init__(
        self, id: str, created: int, model: str, choices: int, tools: bool, spelled: Spelled
    ) -> None:
        self._head = {"id": id, "created": created, "model": model}
        self._tools = tools
        self._spelled = spelled
        self.choices = [Choice() for _ in range(choices)]

    def chunks(self, number: int, delta: Delta) -> list[dict[str, Any]]:
        """The chunks that a delta of choice `number` gives: text, tool calls, the finish reason."""
        choice = self.choices[number]
        choice.add(delta)
        text = delta.text
        calls: list[ToolCall] = []
        if self._tools:
            text = choice.gate.push(delta.text)
            choice.shown += len(text)
            if choice.finish is not None:
                rest, calls = parse_tool_calls(choice.text[choice.shown :])
                text += rest
        chunks: list[dict[str, Any]] = []
        if text or delta.logprobs or not choice.started:
            said: dict[str, Any] = {"content": text}
            if not choice.started:
                said = {"role": "assistant", **said}
                choice.started = True
            chunks.append(self._chunk(number, said, None, delta.logprobs))
        if calls:
            said = {
                "tool_calls": [{"index": at, **self._call(number, at, call)} for at, call in enumerate(calls)]
            }
            chunks.append(self._chunk(number, said, None, ()))
        if choice.finish is not None:
            chunks.append(self._chunk(number, {}, "tool_calls" if calls else choice.finish, ()))
        return chunks

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The last chunk of stream_options.include_usage."""
        return {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage}

    def whole(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The answer of a request that was not streamed."""
        choices = []
        for number, choice in enumerate(self.choices):
            content, calls = parse_tool_calls(choice.text) if self._tools else (choice.text, [])
            message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
            if calls:
                message["content"] = content or None
                message["tool_calls"] = [self._call(number, at, call) for at, call in enumerate(calls)]
            choices.append(
                {
                    "index": number,
                    "message": message,
                    "logprobs": self._logprobs(choice.logprobs),
                    "finish_reason": "tool_calls" if calls else choice.finish,
                }
            )
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": usage}

    def _call(self, number: int, at: int, call: ToolCall) -> dict[str, Any]:
        return {
            "id": f"call_{str(self._head['id'])[-12:]}_{number}_{at}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }

    def _chunk(
        self, number: int, said: dict[str, Any], finish: str | None, logprobs: Sequence[TokenLogprob]
    ) -> dict[str, Any]:
        choice = {
            "index": number,
            "delta": said,
            "logprobs": self._logprobs(logprobs),
            "finish_reason": finish,
        }
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not logprobs:
            return None

        def entry(token: int, logprob: float) -> dict[str, Any]:
            spelled = self._spelled(token)
            return {"token": token_text(spelled), "logprob": logprob, "bytes": list(spelled)}

        return {
            "content": [
                {
                    **entry(item.token, item.logprob),
                    "top_logprobs": [entry(token, logprob) for token, logprob in item.top],
                }
                for item in logprobs
            ],
            "refusal": None,
        }


class Place:
    """How many characters of a text are whole before each of its tokens."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._characters = 0

    def of(self, spelled: bytes) -> int:
        """The next token's."""
        before = self._characters
        self._characters += len(self._decoder.decode(spelled))
        return before


class TextAnswer:
    """text_completion objects, streamed or whole."""

    def __init__(self, id: str, created: int, model: str, choices: int, spelled: Spelled) -> None:
        self._head = {"id": id, "object": "text_completion", "created": created, "model": model}
        self._spelled = spelled
        self.choices = [Choice() for _ in range(choices)]
        self._places = [Place() for _ in range(choices)]

    def chunks(self, number: int, delta: Delta) -> list[dict[str, Any]]:
        """The chunk of a delta."""
        self.choices[number].add(delta)
        body = self._choice(number, delta.text, delta.finish, delta.logprobs)
        return [{**self._head, "choices": [body]}]

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The last chunk of stream_options.include_usage."""
        return {**self._head, "choices": [], "usage": usage}

    def whole(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The answer of a request that was not streamed."""
        choices = [
            self._choice(number, choice.text, choice.finish, choice.logprobs)
            for number, choice in enumerate(self.choices)
        ]
        return {**self._head, "choices": choices, "usage": usage}

    def _choice(
        self, number: int, text: str, finish: str | None, logprobs: Sequence[TokenLogprob]
    ) -> dict[str, Any]:
        found = None
        if logprobs:
            place = self._places[number]
            found = {
                "tokens": [self._text(item.token) for item in logprobs],
                "token_logprobs": [item.logprob for item in logprobs],
                "top_logprobs": [
                    {self._text(token): odds for token, odds in (*item.top, (item.token, item.logprob))}
                    for item in logprobs
                ],
                "text_offset": [place.of(self._spelled(item.token)) for item in logprobs],
            }
        return {"index": number, "text": text, "logprobs": found, "finish_reason": finish}

    def _text(self, token: int) -> str:
        return token_text(self._spelled(token))
