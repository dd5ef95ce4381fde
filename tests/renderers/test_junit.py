"""junit: well-formed XML whatever a finding says."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from kvtool.renderers.junit import render
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


def test_errors_fail_and_information_passes(capsys: pytest.CaptureFixture[str]) -> None:
    odd = replace(FINDING, severity="info", slot='<a> & "b" \x00')
    render(Report({}, findings=[FINDING, odd]))
    suite = ElementTree.fromstring(capsys.readouterr().out)[0]
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    failed, passed = suite
    assert failed[0].get("message") == "a clock takes 3 values"
    assert "1200 lost tokens" in str(failed[0].text)
    assert passed.get("name") == 'KV101 clock-time <a> & "b" \ufffd'
    assert len(passed) == 0


def test_a_clean_run_is_one_passing_case(capsys: pytest.CaptureFixture[str]) -> None:
    render(Report({}))
    suite = ElementTree.fromstring(capsys.readouterr().out)[0]
    assert (suite.get("tests"), suite.get("failures")) == ("1", "0")
