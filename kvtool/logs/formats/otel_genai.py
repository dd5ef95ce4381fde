"""otel-genai: OpenTelemetry GenAI telemetry as OTLP/JSON lines, in its four dialects.

Messages as one attribute (semantic conventions, OpenLLMetry), flattened attributes (OpenInference, older
OpenLLMetry), or log records and span events that are joined by trace and span id.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from kvtool.logs import bodies, otlp
from kvtool.logs.chat import Prompt
from kvtool.logs.fields import count_or_none, microseconds, structured, text_or_none
from kvtool.logs.format import BadRow, Format
from kvtool.logs.otel_messages import flattened, from_event, from_parts
from kvtool.requests import Message, Request, Source, in_row

REMEMBERED = 200_000
"""Calls whose ids are kept, so that a span and its log record are not counted twice."""

OPERATIONS = ("chat", "text_completion", "generate_content", "completion")
MODELS = ("gen_ai.request.model", "llm.model_name", "llm.request.model")
DETAILS = "gen_ai.client.inference.operation.details"
Key = tuple[str, str]


@dataclass(slots=True)
class _Call:
    """What has been seen of a model call whose messages come one by one."""

    source: Source
    prompt: Prompt = field(default_factory=lambda: Prompt([]))
    output: Message | None = None
    span: Request | None = None


class OtelGenAI(Format):
    """A row is an export of spans or log records; every model call is one request, whatever it is told by."""

    name = "otel-genai"
    rank = 70

    def __init__(self, shared: dict[str, Any] | None = None) -> None:
        super().__init__(shared)
        self._done: OrderedDict[Key, None] = OrderedDict()
        self._open: OrderedDict[Key, _Call] = OrderedDict()
        self._tools_seen = False

    @classmethod
    def claims(cls, row: Any) -> bool:
        """`resourceSpans` or `resourceLogs`."""
        return isinstance(row, dict) and any(isinstance(row.get(key), list) for key, _, _ in otlp.SIGNALS)

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """Requests in the order in which they are complete."""
        if not self.claims(row):
            raise BadRow("neither resourceSpans nor resourceLogs in the row")
        for kind, record, path in otlp.records(row):
            key = (str(record.get("traceId")), str(record.get("spanId")))
            attributes = otlp.attributes(record, path)
            name = text_or_none(record.get("eventName")) or text_or_none(attributes.get("event.name")) or ""
            if kind == "logRecords" and name.startswith("gen_ai.") and name != DETAILS:
                self._event(key, name, record.get("body"), source, f"{path}.body")
                yield from self._complete(key)
                continue
            call = _request(record, attributes, source, key)
            if key in self._done:
                continue
            prompt = _prompt(attributes, record)
            if prompt is None and kind == "spans":
                self._span_events(key, record, source, path)
            if prompt is not None:
                self._finished(key)
                yield self._with(call, prompt, from_output(attributes))
            elif kind == "spans" and _is_call(attributes):
                self._open.setdefault(key, _Call(source)).span = call
                yield from self._complete(key)

    def finish(self) -> Iterator[Request]:
        """Calls of which the file shows only a part: their messages without the span."""
        for key, call in self._open.items():
            if call.prompt.messages:
                request = call.span or Request(id=key[1], source=call.source, session=key[0])
                yield self._with(request, call.prompt, call.output)
            else:
                self.lost.append(
                    ("a model call without recorded messages (content capture off?)", call.source)
                )
        self._open.clear()
        if not self._tools_seen:
            self.omitted = "tools"

    def _event(self, key: Key, name: str, body: Any, source: Source, path: str) -> None:
        if key in self._done:
            return
        value, _ = otlp.plain(body)
        call = self._open.setdefault(key, _Call(source))
        message = from_event(name, value)
        if message is None:
            raise BadRow("a message event without a body")
        if name == "gen_ai.choice":
            call.output = message
        else:
            call.prompt.paths[f"messages[{len(call.prompt.messages)}]"] = in_row(source.row, path)
            call.prompt.messages.append(message)

    def _span_events(self, key: Key, record: dict[str, Any], source: Source, path: str) -> None:
        """Older instrumentations put the messages into the span's own events."""
        events = record.get("events")
        for index, event in enumerate(events if isinstance(events, list) else []):
            name = event.get("name") if isinstance(event, dict) else None
            if (
                isinstance(name, str)
                and name.startswith("gen_ai.")
                and name.endswith((".message", ".choice"))
            ):
                at = f"{path}.events[{index}]"
                body = {key: value for key, (value, _) in otlp.attributes(event, at).values.items()}
                self._event(key, name, body, source, at)

    def _complete(self, key: Key) -> Iterator[Request]:
        call = self._open.get(key)
        if call is not None and call.span is not None and call.prompt.messages and call.output is not None:
            self._finished(key)
            yield self._with(call.span, call.prompt, call.output)

    def _finished(self, key: Key) -> None:
        self._open.pop(key, None)
        self._done[key] = None
        if len(self._done) > REMEMBERED:
            self._done.popitem(last=False)

    def _with(self, call: Request, prompt: Prompt, output: Message | str | None) -> Request:
        self._tools_seen = self._tools_seen or bool(prompt.tools)
        text = prompt.messages[0]["content"] if not prompt.messages[0].get("role") else None
        return replace(
            call,
            messages=None if text is not None else prompt.messages,
            text=text,
            tools=prompt.tools,
            output=output,
            paths={**(call.paths or {}), **prompt.paths},
            incomplete=prompt.incomplete,
        )


def _is_call(attributes: otlp.Attributes) -> bool:
    operation = attributes.get("gen_ai.operation.name", "llm.request.type")
    return operation in OPERATIONS or attributes.get("openinference.span.kind") == "LLM"


def _request(record: dict[str, Any], attributes: otlp.Attributes, source: Source, key: Key) -> Request:
    times = (record.get(name) for name in ("startTimeUnixNano", "timeUnixNano", "observedTimeUnixNano"))
    moments = (microseconds(time, "ns") for time in times if time not in (None, "", "0", 0))
    model_at = attributes.first_place(*MODELS)
    usage = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
    return Request(
        id=key[1],
        source=source,
        arrival=next((moment for moment in moments if moment is not None), None),
        session=text_or_none(attributes.get("gen_ai.conversation.id", "session.id")) or key[0],
        model=text_or_none(attributes.get(*MODELS)),
        paths=None if model_at is None else {"model": model_at},
        output_tokens=count_or_none(attributes.get(*usage)),
    )


def _prompt(attributes: otlp.Attributes, record: dict[str, Any]) -> Prompt | None:
    """The prompt that the attributes hold, in whichever dialect; None where they hold none."""
    if "gen_ai.input.messages" in attributes.values:
        prompt = from_parts(attributes)
    else:
        prompt = flattened(attributes) or Prompt([])
        if not prompt.messages or prompt.incomplete or record.get("droppedAttributesCount"):
            whole = _whole_body(attributes)
            if whole is not None:
                return whole
        if not prompt.messages:
            return None
    dropped = record.get("droppedAttributesCount")
    if dropped and not prompt.incomplete:
        prompt.incomplete = "attributes were dropped at the SDK's limit"
    return prompt


def _whole_body(attributes: otlp.Attributes) -> Prompt | None:
    """OpenInference also keeps the call's body as JSON: used where the flattened form lost something."""
    if "input.value" not in attributes.values or not attributes.get("llm.system", "openinference.span.kind"):
        return None
    body, step = structured(attributes.get("input.value"))
    if bodies.api_of(body) is None:
        return None
    return bodies.prompt_of(body, attributes.place("input.value") + step)


def from_output(attributes: otlp.Attributes) -> Message | str | None:
    """The answer that the attributes hold."""
    if "gen_ai.output.messages" in attributes.values:
        answer = from_parts(attributes, "gen_ai.output.messages")
        return answer.messages[0] if answer.messages and answer.messages[0].get("role") else None
    value, _ = structured(attributes.get("output.value"))
    return bodies.answer_of(value)[0]


FORMAT = OtelGenAI
