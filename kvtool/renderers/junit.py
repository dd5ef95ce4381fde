"""junit: one test case per finding (or a single passing one), for CI servers that read JUnit XML."""

import re
import sys
from xml.sax.saxutils import escape, quoteattr

from kvtool.report import Report

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold in any form."""


def render(report: Report) -> None:
    """Errors and warnings are failures, information passes."""
    failures = sum(finding.severity != "info" for finding in report.findings)
    cases = max(len(report.findings), 1)
    out = ['<?xml version="1.0" encoding="UTF-8"?>']
    out.append(f'<testsuites><testsuite name="kvtool lint" tests="{cases}" failures="{failures}">')
    if not report.findings:
        out.append('<testcase classname="kvtool" name="no findings"/>')
    for finding in report.findings:
        place = finding.location
        name = f"{finding.code} {finding.name} {finding.slot}"
        head = f"<testcase classname={_attribute(place.file)} name={_attribute(name)}"
        if finding.severity == "info":
            out.append(head + "/>")
            continue
        text = f"{place.file}:{place.row} {place.path}\n{finding.lost_tokens} lost tokens\n"
        out.append(
            f"{head}><failure type={_attribute(finding.severity)} message={_attribute(finding.message)}>"
            f"{escape(_clean(text))}</failure></testcase>"
        )
    out.append("</testsuite></testsuites>")
    sys.stdout.write("\n".join(out) + "\n")


def _attribute(text: str) -> str:
    return quoteattr(_clean(text))


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
