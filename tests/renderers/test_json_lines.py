"""json-lines: a finding object a line."""

import json

import pytest

from kvtool.renderers.json_lines import render
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


def test_every_line_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    render(Report({}, findings=[FINDING, FINDING]))
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [FINDING.to_json()] * 2
