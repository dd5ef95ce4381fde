"""concise: a line each, and a count."""

from dataclasses import replace

import pytest

from kvtool.renderers.concise import render
from kvtool.report import Finding, Report


def test_one_line_each_and_a_count(capsys: pytest.CaptureFixture[str], finding: Finding) -> None:
    render(Report({}, findings=[finding, replace(finding, severity="info", message="two\nlines")]))
    assert capsys.readouterr().out.splitlines() == [
        "logs/a b.jsonl:7: KV101 error messages[0].content[14:33] a clock takes 3 values (1,200 lost tokens)",
        "logs/a b.jsonl:7: KV101 info messages[0].content[14:33] two lines (1,200 lost tokens)",
        "1 error, 1 info",
    ]


def test_nothing_found_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    render(Report({}))
    assert capsys.readouterr().out == "no findings\n"
