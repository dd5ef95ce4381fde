"""litellm: LiteLLM's StandardLoggingPayload."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvtool.logs import bodies
from kvtool.logs.fields import count_or_none, microseconds, named, structured
from kvtool.logs.format import BadRow, Format
from kvtool.requests import Request, Source

MARKS = frozenset(
    ("litellm_call_id", "model_parameters", "call_type", "model_map_information", "response_cost")
)


class LiteLLM(Format):
    """`messages` at the top, `tools` under `model_parameters`, `startTime` in seconds."""

    name = "litellm"
    rank = 50

    @classmethod
    def claims(cls, row: Any) -> bool:
        """`messages` beside at least two of LiteLLM's own fields."""
        return isinstance(row, dict) and "messages" in row and len(MARKS & row.keys()) >= 2

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """One request a row; a redacted or missing prompt is incomplete, not judged."""
        if not isinstance(row, dict) or "messages" not in row:
            raise BadRow("no `messages` in the row")
        parameters, step = structured(row.get("model_parameters"))
        body = {key: row[key] for key in ("messages", "model", "system") if row.get(key) is not None}
        if isinstance(row["messages"], dict):  # LiteLLM wraps a Responses input or a redacted prompt
            body = {**row["messages"], "model": row.get("model")}
        tools_at = f"model_parameters{step}"
        if isinstance(parameters, dict):
            body.update({key: parameters[key] for key in ("tools", "functions") if parameters.get(key)})
        prompt = bodies.prompt_of(body, "messages" if isinstance(row["messages"], dict) else "")
        paths = {
            ours: (f"{tools_at}.{theirs}" if theirs.startswith(("tools", "functions")) else theirs)
            for ours, theirs in {**({"tools": "tools"} if prompt.tools else {}), **prompt.paths}.items()
        }
        output, output_tokens = bodies.answer_of(row.get("response"))
        redacted = any(
            isinstance(message.get("content"), str) and message["content"].startswith("redacted-by-litellm")
            for message in prompt.messages
        )
        metadata = row.get("metadata")
        yield replace(
            Request(id=named(row, ("id", "litellm_call_id")) or f"{source.file}:{source.row}", source=source),
            arrival=microseconds(row.get("startTime")),
            session=named(row, ("session_id", "trace_id")) or named(metadata, ("session_id",)),
            tenant=named(metadata, ("tenant_id", "tenant")),
            model=prompt.model,
            messages=prompt.messages,
            tools=prompt.tools,
            output=output,
            output_tokens=count_or_none(row.get("completion_tokens")) or output_tokens,
            paths=paths,
            incomplete="LiteLLM redacted the messages" if redacted else prompt.incomplete,
        )


FORMAT = LiteLLM
