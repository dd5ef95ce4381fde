"""What the tests of this room share: reading a sample, and what a request says to the model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvtool.logs.reader import Log, open_log
from kvtool.requests import Request

SAMPLES = Path(__file__).resolve().parent.parent / "data/formats"


@pytest.fixture(scope="session")
def samples() -> Path:
    return SAMPLES


@pytest.fixture(scope="session")
def read() -> Callable[..., tuple[Log, list[Request]]]:
    """Sample names -> (the log after its pass, its requests)."""

    def reader(*names: str, **options: Any) -> tuple[Log, list[Request]]:
        log = open_log([str(SAMPLES / name) for name in names], **options)
        return log, list(log)

    return reader


def canonical(value: Any) -> str:
    """JSON with sorted keys; JSON in a string counts as what it says."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return value
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def spoken(request: Request) -> list[str]:
    """Everything of a request that reaches the model, in order, flat."""
    if request.text is not None:
        return [request.text]
    out = [canonical(tool.get("function", tool)) for tool in request.tools or []]
    for message in request.messages or []:
        out.append(f"<{message['role']}>")
        content = message.get("content")
        for part in [content] if isinstance(content, str) else content or []:
            if isinstance(part, dict):
                part = part["text"] if isinstance(part.get("text"), str) else canonical(part)
            if part:
                out.append(part)
        if message.get("reasoning_content"):
            out.append("think: " + message["reasoning_content"])
        for call in message.get("tool_calls") or []:
            function = call["function"]
            out += [f"call: {function['name']}", canonical(function.get("arguments"))]
    return out


@pytest.fixture(scope="session")
def said() -> Callable[[Request], list[str]]:
    return spoken


@pytest.fixture(scope="session")
def plain() -> Callable[[Any], str]:
    return canonical
