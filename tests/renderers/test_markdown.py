"""Markdown: tables are tables, and nothing from a log becomes markup."""

from dataclasses import replace

from kvtool.renderers.markdown import render
from kvtool.report import Column, Finding, Fix, Location, Report, Table


def test_tables_findings_and_notes(capsys):
    finding = Finding(
        "KV101", "clock-time", "error", "a <b>clock</b>", "f",
        Location("log", 3, "messages[0]", "system", 0, 1),
        "s", [], 1, 1, 1, 1200, 0.5, Fix("strip", False),
    )  # fmt: skip
    table = Table("Sizes", [Column("name"), Column("rate", "rate")], [["a|b", 0.25], ["c", None]])
    render(Report({}, ["10 requests"], [table], [finding], ["see *this*"]))
    assert capsys.readouterr().out == (
        "10 requests  \n\n"
        "### Sizes\n\n| name | rate |\n|---|--:|\n| a\\|b | 25.0% |\n| c | - |\n\n"
        "### Findings\n\n"
        "- **KV101 clock-time** (error): a \\<b\\>clock\\</b\\>\n"
        "  at `log:3` `messages[0]`; 1,200 lost tokens, hit rate 50.0% if fixed; fix: strip (unsafe)\n\n"
        "- see \\*this\\*\n"
    )


def test_a_whole_file_needs_no_path(capsys, finding):
    render(Report({}, findings=[replace(finding, location=replace(finding.location, path=""))]))
    assert "\n  at `logs/a b.jsonl:7`; 1,200 lost tokens" in capsys.readouterr().out
