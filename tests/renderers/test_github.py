"""github: workflow commands, escaped."""

from dataclasses import replace

import pytest

from kvtool.renderers.github import render
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


def test_annotations_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    bad = replace(
        FINDING, severity="info", message="100%\n::error::x", location=replace(FINDING.location, file="a,b:c")
    )
    render(Report({}, findings=[FINDING, bad]))
    first, second = capsys.readouterr().out.splitlines()
    assert first == (
        "::error file=logs/a b.jsonl,line=7,title=KV101 clock-time::a clock takes 3 values; 1200 lost tokens; "
        "at messages[0].content Time: {clock-time}"
    )
    assert second.startswith("::notice file=a%2Cb%3Ac,line=7,title=KV101 clock-time::100%25%0A::error::x;")
