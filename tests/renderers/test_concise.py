"""concise: a line each, and a count."""

from dataclasses import replace

import pytest

from kvtool.renderers.concise import render
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


def test_one_line_each_and_a_count(capsys: pytest.CaptureFixture[str]) -> None:
    render(Report({}, findings=[FINDING, replace(FINDING, severity="info", message="two\nlines")]))
    assert capsys.readouterr().out.splitlines() == [
        "logs/a b.jsonl:7: KV101 error messages[0].content[14:33] a clock takes 3 values (1,200 lost tokens)",
        "logs/a b.jsonl:7: KV101 info messages[0].content[14:33] two lines (1,200 lost tokens)",
        "1 error, 1 info",
    ]


def test_nothing_found_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    render(Report({}))
    assert capsys.readouterr().out == "no findings\n"
