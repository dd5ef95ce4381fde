"""terminal: units, and text from a log that must stay text."""

from dataclasses import replace

import pytest

from kvtool.renderers.terminal import render, show, show_bytes
from kvtool.report import Column, Finding, Fix, Location, Report, Table


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "count", "-"),
        (1234567, "count", "1,234,567"),
        (0.37338, "rate", "37.3%"),
        (1536, "bytes", "1.5 KiB"),
        (0.2345, "seconds", "234 ms"),
        (12.34, "seconds", "12.3 s"),
        (23.44, "ratio", "23.4x"),
        ("as it is", "ratio", "as it is"),
    ],
)
def test_units(value: str | int | float | None, unit: str, text: str) -> None:
    assert show(value, Column("", unit)) == text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 * 2**40, "3072.0 GiB")]
)
def test_bytes(value: float, text: str) -> None:
    assert show_bytes(value) == text


def test_markup_in_a_log_is_printed_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding(
        code="KV101",
        name="clock-time",
        severity="error",
        message="a clock in [bold]system[/bold]",
        fingerprint="f",
        location=Location("a[b].jsonl", 3, "messages[0].content", "system", 4, 9),
        slot="[red]{clock}[/red]",
        examples=[],
        requests=2,
        sessions=1,
        distinct_values=2,
        lost_tokens=1234,
        hit_rate_if_fixed=0.5,
        fix=Fix("move-to-last-user", safe=False),
    )
    table = Table("T", [Column("name"), Column("n", "count")], [["[i]x[/i]", 7]])
    render(Report({}, ["head [b]line[/b]"], [table], [finding], ["a [note]"]))
    out = capsys.readouterr().out
    for text in (
        "head [b]line[/b]",
        "[i]x[/i]",
        "a clock in [bold]system[/bold]",
        "a[b].jsonl:3 messages[0].content [4:9]",
        "[red]{clock}[/red]",
        "1,234 lost tokens; hit rate 50.0% if fixed",
        "move-to-last-user (unsafe)",
        "note: a [note]",
    ):
        assert text in out


def test_ten_lines_first_and_the_rest_when_asked_for(
    finding: Finding, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = [replace(finding, message=f"cause {number}") for number in range(7)]
    advice = Table("Advice", [Column(""), Column("")], [["routing", "by prefix"]])
    sizes = Table("Block sizes", [Column("tokens", "count")], [[4321]])
    report = Report({}, ["hit rate"], [advice], findings, details=[sizes], all_details=False)
    render(report)
    brief = capsys.readouterr().out
    assert "cause 4" in brief and "cause 5" not in brief and "4,321" not in brief
    assert brief.index("cause 4") < brief.index("by prefix")
    assert "--details shows 2 cheaper findings, Block sizes" in brief
    report.all_details = True
    render(report)
    whole = capsys.readouterr().out
    assert "cause 6" in whole and "4,321" in whole and "--details" not in whole


def test_a_place_stays_in_one_piece(capsys: pytest.CaptureFixture[str], finding: Finding) -> None:
    render(
        Report({}, findings=[replace(finding, location=replace(finding.location, file="logs/" + "a" * 90))])
    )
    assert f"  at    logs/{'a' * 90}:7 messages[0].content [14:33]\n" in capsys.readouterr().out
