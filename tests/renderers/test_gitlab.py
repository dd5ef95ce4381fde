"""gitlab: Code Quality issues."""

import json

import pytest

from kvtool.renderers.gitlab import render
from kvtool.report import Finding, Report


def test_issues_have_place_severity_and_fingerprint(
    capsys: pytest.CaptureFixture[str], finding: Finding
) -> None:
    render(Report({}, findings=[finding]))
    assert json.loads(capsys.readouterr().out) == [
        {
            "check_name": "KV101",
            "description": "clock-time: a clock takes 3 values",
            "fingerprint": "f00d",
            "severity": "major",
            "location": {"path": "logs/a b.jsonl", "lines": {"begin": 7}},
        }
    ]
