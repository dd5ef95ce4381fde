"""Chat templates: messages and tools -> prompt text, with every character's place in the request.

`chatml-tools` is our own ChatML that renders tools, tool calls and tool results. Templates of models
and files are Jinja, run in the sandbox that transformers uses (immutable, no attribute access to
internals). Where a field landed in Jinja's output is found by rendering twice, the second time with
marks (see `spans`); if taking those out does not give the first text, the template depends on its
input's characters.
"""

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from kvtool.blocks import fingerprint
from kvtool.errors import KvtoolError
from kvtool.media import content_parts
from kvtool.requests import Message
from kvtool.spans import Field, Rendered, Span, marked, search, search_tools, unmark

Tools = Sequence[dict[str, Any]]


class Template(Protocol):
    """How messages become text. `fingerprint` changes whenever the output could."""

    name: str
    fingerprint: str

    def render(
        self, messages: Sequence[Message], tools: Tools | None, *, generation: bool = True
    ) -> Rendered:
        """Prompt text; `generation` appends the header of the assistant's next message."""
        ...


class _Writer:
    """Collects text and, beside it, where each field went."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.spans: list[Span] = []
        self.length = 0

    def fixed(self, text: str) -> None:
        self.pieces.append(text)
        self.length += len(text)

    def field(self, text: str, path: str, role: str, offset: int = 0) -> None:
        if text:
            self.spans.append(Span(self.length, self.length + len(text), path, role, offset))
            self.fixed(text)

    def done(self) -> Rendered:
        return Rendered("".join(self.pieces), tuple(self.spans))


TOOLS_HEADER = "# Tools\n\nYou may call the functions below. They are described in JSON, one a line:\n<tools>"
TOOLS_FOOTER = (
    "\n</tools>\n\nTo call a function, answer with a JSON object inside <tool_call></tool_call>:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <arguments-object>}\n</tool_call>'
)


class ChatMLTools:
    """ChatML that renders what agents send: tools in the system turn, tool calls, tool results."""

    name = "chatml-tools"
    fingerprint = fingerprint(b"chatml-tools/1", TOOLS_HEADER.encode(), TOOLS_FOOTER.encode())

    def render(
        self, messages: Sequence[Message], tools: Tools | None, *, generation: bool = True
    ) -> Rendered:
        """Text with one span per message field and per tool."""
        out = _Writer()
        first_is_system = bool(messages) and messages[0].get("role") in ("system", "developer")
        if tools and not first_is_system:
            out.fixed("<|im_start|>system\n")
            self._tools(out, tools)
            out.fixed("<|im_end|>\n")
        for index, message in enumerate(messages):
            role = str(message.get("role", "user"))
            out.fixed("<|im_start|>")
            out.fixed("system" if role == "developer" else role)
            out.fixed("\n")
            self._content(out, message, f"messages[{index}]", role)
            if index == 0 and first_is_system and tools:
                out.fixed("\n\n")
                self._tools(out, tools)
            out.fixed("<|im_end|>\n")
        if generation:
            out.fixed("<|im_start|>assistant\n")
        return out.done()

    @staticmethod
    def _tools(out: _Writer, tools: Tools) -> None:
        out.fixed(TOOLS_HEADER)
        for index, tool in enumerate(tools):
            out.fixed("\n")
            out.field(json.dumps(tool, ensure_ascii=False), f"tools[{index}]", "tools", -1)
        out.fixed(TOOLS_FOOTER)

    @staticmethod
    def _content(out: _Writer, message: Message, path: str, role: str) -> None:
        if message.get("name") and role in ("tool", "function"):
            out.field(str(message["name"]), f"{path}.name", role)
            out.fixed("\n")
        reasoning = message.get("reasoning_content")
        if isinstance(reasoning, str) and reasoning:
            out.fixed("<think>\n")
            out.field(reasoning, f"{path}.reasoning_content", role)
            out.fixed("\n</think>\n")
        for suffix, text in content_parts(message.get("content")):
            out.field(text, f"{path}.content{suffix}", role)
        calls = message.get("tool_calls") or []
        for number, call in enumerate(calls if isinstance(calls, list) else [calls]):
            function = (call.get("function") or {}) if isinstance(call, dict) else None
            if not isinstance(function, dict):
                raise KvtoolError(f"{path}.tool_calls[{number}]: not a call, an object with a `function`")
            arguments = function.get("arguments")
            out.fixed('\n<tool_call>\n{"name": "')
            out.field(str(function.get("name", "")), f"{path}.tool_calls[{number}].function.name", role)
            out.fixed('", "arguments": ')
            where = f"{path}.tool_calls[{number}].function.arguments"
            if isinstance(arguments, str):
                out.field(arguments, where, role)
            else:
                out.field(json.dumps(arguments or {}, ensure_ascii=False), where, role, -1)
            out.fixed("}\n</tool_call>")
        if isinstance(message.get("function_call"), dict):  # the older form of one call
            out.field(
                json.dumps(message["function_call"], ensure_ascii=False), f"{path}.function_call", role, -1
            )


class JinjaTemplate:
    """A model's or a user's Jinja chat template, run in the sandbox.

    `variables` are the special tokens a template may name (bos_token, eos_token, ...). Templates that
    print today's date get a fixed one: the same request must render the same bytes.
    """

    def __init__(self, source: str, name: str, variables: dict[str, Any] | None = None) -> None:
        from jinja2 import TemplateSyntaxError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(message: str) -> None:
            raise KvtoolError(f"chat template {name}: {message}", "change the messages or --chat-template")

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda form: "2025-01-01" if "-" in form else "01 Jan 2025"
        try:
            self._template = environment.from_string(_without_generation_tags(source))
        except TemplateSyntaxError as error:
            raise KvtoolError(f"chat template {name}, line {error.lineno}: {error.message}") from error
        self._variables = variables or {}
        self.name = name
        self.fingerprint = fingerprint(source.encode(), repr(sorted(self._variables.items())).encode())
        self.source = source
        self._takes_parts = self._prints_parts()

    def render(
        self, messages: Sequence[Message], tools: Tools | None, *, generation: bool = True
    ) -> Rendered:
        """Text and spans; a template that fails names itself and its reason."""
        prepared = [_parsed_arguments(message) for message in messages]
        text = self._run(
            [marked(message, "", None, self._takes_parts) for message in prepared], tools, generation
        )
        fields: list[Field] = []
        with_marks = [
            marked(message, f"messages[{index}]", fields, self._takes_parts)
            for index, message in enumerate(prepared)
        ]
        found = unmark(self._run(with_marks, tools, generation), text, fields)
        if found is None:
            found = search(text, fields)
        return Rendered(
            text, tuple(sorted([*found, *search_tools(text, tools or [])], key=lambda s: s.start))
        )

    def knows(self, probe: str, messages: Sequence[Message], tools: Tools | None) -> bool:
        """True when `probe`, placed somewhere in the request, reaches the rendered text."""
        try:
            return probe in self._run(list(messages), tools, True)
        except KvtoolError:
            return False

    def _prints_parts(self) -> bool:
        """Whether the template knows content in parts; many take text alone."""
        parts: Message = {"role": "user", "content": [{"type": "text", "text": _PROBE}]}
        try:
            text = self._run([parts], None, True)
        except KvtoolError:
            return False
        return _PROBE in text and "'text'" not in text and '"text"' not in text

    def _run(self, messages: list[Message], tools: Tools | None, generation: bool) -> str:
        from jinja2 import TemplateError

        try:
            return self._template.render(
                messages=messages,
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=generation,
                **self._variables,
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            raise KvtoolError(
                f"chat template {self.name}: {error}", "try --chat-template chatml-tools"
            ) from error


def _without_generation_tags(source: str) -> str:
    """Training templates mark the assistant's text with {% generation %}; it prints nothing."""
    return re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", source)


def _tojson(value: object, indent: int | None = None, ensure_ascii: bool = False, **_: object) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _parsed_arguments(message: Message) -> Message:
    """Templates expect a call's arguments as an object; the API sends them as a JSON string."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    parsed = []
    for call in calls:
        function = dict(call.get("function") or {})
        if isinstance(function.get("arguments"), str):
            with contextlib.suppress(ValueError):
                function["arguments"] = json.loads(function["arguments"])
        parsed.append({**call, "function": function})
    return {**message, "tool_calls": parsed}


_PROBE = "kvtool-probe-7f3a"


def load_template(
    spec: str,
    own: str | None,
    variables: dict[str, Any] | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> Template:
    """The template for `--chat-template`: `auto`, `chatml-tools`, or a file.

    `own` is the tokenizer's template source, if it has one. `auto` takes it unless it drops tools or
    the tool role; then `warn` is told once and ours is used.
    """
    if spec == "chatml-tools" or (spec == "auto" and own is None):
        return ChatMLTools()
    if spec != "auto":
        path = Path(spec)
        if not path.is_file():
            raise KvtoolError(
                f"--chat-template {spec}: no such file", "name auto, chatml-tools or a Jinja file"
            )
        return JinjaTemplate(path.read_text(encoding="utf-8"), path.name, variables)
    assert own is not None
    template = JinjaTemplate(own, "auto", variables)
    tool = {
        "type": "function",
        "function": {"name": _PROBE, "description": "", "parameters": {"type": "object"}},
    }
    hello: Message = {"role": "user", "content": "hi"}
    call: Message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call00001", "type": "function", "function": {"name": _PROBE, "arguments": {}}}
        ],
    }
    result: Message = {"role": "tool", "content": "done", "tool_call_id": "call00001", "name": "f"}
    if not template.knows(_PROBE, [hello], [tool]):
        missing = "ignores tools"
    elif not template.knows(_PROBE, [hello, call, result], [tool]):
        missing = "ignores tool calls"
    else:
        return template
    warn(f"the model's own chat template {missing}: chatml-tools is used instead")
    return ChatMLTools()
