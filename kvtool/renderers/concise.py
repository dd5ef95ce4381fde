"""concise: one line per finding, as compilers print errors, and a last line that counts them."""

import sys
from collections import Counter

from kvtool.report import Report


def render(report: Report) -> None:
    """`file:row: CODE severity message (price)`, in the report's order."""
    for finding in report.findings:
        place = finding.location
        where = f"{place.path}[{place.start}:{place.end}] " if place.path else ""
        sys.stdout.write(
            f"{place.file}:{place.row}: {finding.code} {finding.severity} {where}"
            f"{' '.join(finding.message.split())} ({finding.lost_tokens:,} lost tokens)\n"
        )
    counts = Counter(finding.severity for finding in report.findings)
    said = ", ".join(f"{counts[kind]} {kind}" for kind in ("error", "warning", "info") if counts[kind])
    sys.stdout.write(f"{said or 'no findings'}\n")
