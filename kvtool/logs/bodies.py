"""API bodies of any known provider: which API one speaks, its prompt, its answer, its request."""

import json
from collections.abc import Mapping
from typing import Any

from kvtool.logs import chat
from kvtool.logs.anthropic import anthropic_output, anthropic_prompt, looks_anthropic
from kvtool.logs.chat import Prompt
from kvtool.logs.fields import (
    ID_KEYS,
    count_or_none,
    named,
    session_of,
    structured,
    tenant_of,
    time_of,
)
from kvtool.logs.format import BadRow
from kvtool.logs.gemini import gemini_output, gemini_prompt
from kvtool.logs.responses import looks_responses, responses_output, responses_prompt
from kvtool.requests import Message, Request, Source

PROMPT_KEYS = ("messages", "contents", "instructions", "input")


def api_of(body: Any, url: str = "") -> str | None:
    """`chat`, `anthropic`, `responses` or `gemini`; None for a body that is no model call."""
    if not isinstance(body, dict) or "embedding" in url:
        return None
    if "contents" in body and isinstance(structured(body["contents"])[0], list | dict | str):
        return "gemini"
    if isinstance(structured(body.get("messages"))[0], list):
        anthropic = looks_anthropic(body) or url.split("?")[0].endswith("/v1/messages")
        return "anthropic" if anthropic else "chat"
    return "responses" if looks_responses(body) else None


def prompt_of(body: Mapping[str, Any], path: str, url: str = "") -> Prompt:
    """The prompt of a body at `path` in its row. Raises BadRow for one that is no model call."""
    readers = {
        "chat": chat.chat_prompt,
        "anthropic": anthropic_prompt,
        "responses": responses_prompt,
        "gemini": gemini_prompt,
    }
    api = api_of(body, url)
    if api is None:
        raise BadRow("no messages, input or contents that are a prompt")
    prompt = readers[api](body, path)
    if path and prompt.model is not None:
        prompt.paths["model"] = chat.join(path, "model")
    return prompt


def answer_of(response: Any) -> tuple[Message | str | None, int | None]:
    """(assistant message or text, output tokens) of a response of any API; a stream is not put together."""
    response, _ = structured(response)
    if isinstance(response, dict):
        inner, _ = structured(response.get("body"))
        if isinstance(inner, dict):
            response = inner
        try:
            if isinstance(response.get("candidates"), list):
                return gemini_output(response)
            if isinstance(response.get("output"), list):
                return responses_output(response)
            if isinstance(response.get("content"), list):
                return anthropic_output(response)
        except BadRow:
            return None, None
    return chat.chat_output(response)


def url_of(row: Any) -> str:
    """The path or URL beside a body, under the usual names."""
    for place in (row, row.get("request") if isinstance(row, dict) else None):
        found = named(place, ("path", "url", "uri", "endpoint", "route"))
        if found:
            return found
    return ""


def body_request(row: Any, source: Source, wanted: tuple[str, ...] = PROMPT_KEYS) -> Request:
    """The request of a row that is a body, a request and response pair, or a gateway's envelope."""
    if isinstance(row, list):
        return Request(
            id=f"{source.file}:{source.row}",
            source=source,
            messages=chat.chat_messages(row, "", {}),
            paths={"messages": ""},
        )
    found = chat.find_body(row, wanted)
    if found is None:
        raise BadRow(f"none of {', '.join(wanted)} in the row")
    body, path = found
    prompt = prompt_of(body, path, url_of(row))
    answer = chat.response_of(row) if path or "choices" not in row else row
    output, output_tokens = answer_of(answer)
    moments = (time_of(place) for place in (row, row.get("request"), body, answer))
    return Request(
        id=named(row, ID_KEYS) or f"{source.file}:{source.row}",
        source=source,
        arrival=next((moment for moment in moments if moment is not None), None),
        session=session_of(row, row.get("request"), body),
        tenant=tenant_of(row, body),
        model=prompt.model or named(row, ("model",)),
        messages=prompt.messages,
        tools=prompt.tools,
        output=output,
        output_tokens=count_or_none(output_tokens),
        output_ids=chat.generated_ids(answer),
        paths=prompt.paths or None,
        incomplete=prompt.incomplete,
    )


def as_text(value: Any) -> str:
    """A tool's result as the text that a model gets: strings as they are, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
