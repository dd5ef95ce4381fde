"""The log: one line an event in either format, with a request's numbers and none of its words."""

import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvtool.engine.serving.journal import FORMATS, event


def written(format: str, act: Callable[[], None]) -> list[str]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(FORMATS[format]())
    log = logging.getLogger("kvtool.serve")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        act()
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    return stream.getvalue().splitlines()


def test_an_event_in_both_formats() -> None:
    (line,) = written("text", lambda: event("request", prompt=7, finish="stop"))
    assert line.endswith(" INFO request prompt=7 finish=stop") and line[10] == "T"
    (line,) = written("json", lambda: event("odd\nname", prompt=7))
    entry = json.loads(line)
    assert (entry["level"], entry["message"], entry["prompt"]) == ("info", "odd\nname", 7)


def test_a_failure_is_one_json_line_with_its_traceback() -> None:
    def fail() -> None:
        try:
            raise ValueError("broken")
        except ValueError:
            logging.getLogger("kvtool.serve").exception("it failed")

    (line,) = written("json", fail)
    entry = json.loads(line)
    assert entry["level"] == "error" and "ValueError: broken" in entry["traceback"]


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_request_leaves_its_numbers_and_not_its_words(
    serving: Callable[..., Any], tiny_model: Path, format: str
) -> None:
    def ask() -> None:
        with serving(model=str(tiny_model), block_size=8, device_blocks=40) as running:
            body = {"model": "tiny-llama", "prompt": "a secret word", "max_tokens": 3, "ignore_eos": True}
            headers = {"x-session-id": "secret-session", "authorization": "Bearer secret-key"}
            answer = httpx.post(f"{running.url}/v1/completions", json=body, headers=headers, timeout=60)
            assert answer.status_code == 200
            running.idle()

    lines = [line for line in written(format, ask) if "request" in line]
    assert len(lines) == 1 and "secret" not in lines[0]
    if format == "json":
        entry = json.loads(lines[0])
        assert (entry["prompt"], entry["cached"], entry["completion"], entry["finish"]) == (
            13,
            0,
            3,
            "length",
        )
        assert 0 < entry["ttft"] <= entry["total"]
    else:
        assert "prompt=13 cached=0 completion=3" in lines[0]
