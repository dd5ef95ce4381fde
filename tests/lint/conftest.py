"""Logs for lint tests: rows in OpenAI chat form, read as kvtool reads them, tokenized by bytes."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvtool.logs.reader import open_log
from kvtool.requests import Request
from kvtool.tokens import PromptEncoder, load_encoder

Read = Callable[[Sequence[dict[str, Any]]], list[Request]]


@pytest.fixture(scope="session")
def encoder() -> PromptEncoder:
    return load_encoder("bytes")


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def rows_to_requests(rows: Sequence[dict[str, Any]]) -> list[Request]:
        path = tmp_path / "log.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return list(open_log([str(path)]))

    return rows_to_requests
