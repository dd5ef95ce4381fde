"""github: workflow commands, escaped."""

from dataclasses import replace

import pytest

from kvtool.renderers.github import render
from kvtool.report import Finding, Report


def test_annotations_are_escaped(capsys: pytest.CaptureFixture[str], finding: Finding) -> None:
    bad = replace(
        finding, severity="info", message="100%\n::error::x", location=replace(finding.location, file="a,b:c")
    )
    render(Report({}, findings=[finding, bad]))
    first, second = capsys.readouterr().out.splitlines()
    assert first == (
        "::error file=logs/a b.jsonl,line=7,title=KV101 clock-time::a clock takes 3 values; "
        "1200 lost tokens; at messages[0].content Time: {clock-time}"
    )
    assert second.startswith("::notice file=a%2Cb%3Ac,line=7,title=KV101 clock-time::100%25%0A::error::x;")


def test_a_whole_file_needs_no_path(capsys: pytest.CaptureFixture[str], finding: Finding) -> None:
    render(Report({}, findings=[replace(finding, location=replace(finding.location, path=""))]))
    assert capsys.readouterr().out.endswith("; at Time: {clock-time}\n")
