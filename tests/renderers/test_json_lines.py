"""json-lines: a finding object a line."""

import json

import pytest

from kvtool.renderers.json_lines import render
from kvtool.report import Finding, Report


def test_every_line_is_a_finding(capsys: pytest.CaptureFixture[str], finding: Finding) -> None:
    render(Report({}, findings=[finding, finding]))
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [finding.to_json()] * 2
