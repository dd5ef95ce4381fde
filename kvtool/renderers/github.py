"""github: workflow commands that GitHub Actions turns into annotations of files."""

import sys

from kvtool.report import Report

LEVELS = {"error": "error", "warning": "warning", "info": "notice"}


def render(report: Report) -> None:
    """One command per finding. Rows are lines for JSONL and for templates."""
    for finding in report.findings:
        place = finding.location
        title = f"{finding.code} {finding.name}"
        where = f"{place.path} {finding.slot}".lstrip()
        text = f"{finding.message}; {finding.lost_tokens} lost tokens; at {where}"
        sys.stdout.write(
            f"::{LEVELS[finding.severity]} file={_property(place.file)},line={place.row},"
            f"title={_property(title)}::{_data(text)}\n"
        )


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
