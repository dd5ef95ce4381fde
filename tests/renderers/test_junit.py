"""junit: well-formed XML whatever a finding says."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from kvtool.renderers.junit import render
from kvtool.report import Finding, Report


def test_errors_fail_and_information_passes(capsys: pytest.CaptureFixture[str], finding: Finding) -> None:
    odd = replace(finding, severity="info", slot='<a> & "b" \x00')
    render(Report({}, findings=[finding, odd]))
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
