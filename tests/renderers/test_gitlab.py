"""gitlab: Code Quality issues."""

import json

import pytest

from kvtool.renderers.gitlab import render
from kvtool.report import Finding, Fix, Location, Report

FINDING = Finding(
    code="KV101",
    name="clock-time",
    severity="error",
    message="a clock takes 3 values",
    fingerprint="f00d",
    location=Location("logs/a b.jsonl", 7, "messages[0].content", "system", 14, 33),
    slot="Time: {clock-time}",
    examples=["10:15:00"],
    requests=3,
    sessions=2,
    distinct_values=3,
    lost_tokens=1200,
    hit_rate_if_fixed=0.75,
    fix=Fix("move-to-last-user", True),
)


def test_issues_have_place_severity_and_fingerprint(capsys: pytest.CaptureFixture[str]) -> None:
    render(Report({}, findings=[FINDING]))
    assert json.loads(capsys.readouterr().out) == [
        {
            "check_name": "KV101",
            "description": "clock-time: a clock takes 3 values",
            "fingerprint": "f00d",
            "severity": "major",
            "location": {"path": "logs/a b.jsonl", "lines": {"begin": 7}},
        }
    ]
