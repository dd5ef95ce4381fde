"""markdown: for a pull request or a wiki page; the terminal's content as headings, tables and lists."""

import sys

from kvtool.renderers.terminal import cost, show
from kvtool.report import Finding, Report, Table


def render(report: Report) -> None:
    """Write the report as GitHub-flavoured Markdown."""
    parts = ["\n".join(f"{_escape(line)}  " for line in report.headline)]
    parts += [_table(table) for table in (*report.tables, *report.details)]
    if report.findings:
        parts.append("### Findings")
        parts += [_finding(finding) for finding in report.findings]
    if report.notes:
        parts.append("\n".join(f"- {_escape(note)}" for note in report.notes))
    parts += [_escape(line) for line in report.closing]
    sys.stdout.write("\n\n".join(part for part in parts if part) + "\n")


def _table(table: Table) -> str:
    lines = [f"### {_escape(table.title)}", ""] if table.title else []
    lines.append("| " + " | ".join(_escape(column.title) for column in table.columns) + " |")
    lines.append("|" + "|".join("---" if column.unit == "text" else "--:" for column in table.columns) + "|")
    for row in table.rows:
        cells = (show(cell, column) for cell, column in zip(row, table.columns, strict=True))
        lines.append("| " + " | ".join(_escape(cell) for cell in cells) + " |")
    return "\n".join(lines)


def _finding(finding: Finding) -> str:
    place = finding.location
    path = f" `{place.path}`" if place.path else ""
    return (
        f"- **{finding.code} {finding.name}** ({finding.severity}): {_escape(finding.message)}\n"
        f"  at `{place.file}:{place.row}`{path}; {cost(finding)}, "
        f"hit rate {finding.hit_rate_if_fixed:.1%} if fixed; "
        f"fix: {finding.fix.action}{'' if finding.fix.safe else ' (unsafe)'}"
    )


def _escape(text: str) -> str:
    """Text that stays text: no cell ends early, no markup or HTML from a log takes effect."""
    for character in "\\`*_|[]<>#":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())
