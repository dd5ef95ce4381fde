"""gitlab: the Code Quality report that GitLab shows in merge requests."""

import json
import sys

from kvtool.report import Report

SEVERITIES = {"error": "major", "warning": "minor", "info": "info"}


def render(report: Report) -> None:
    """A JSON array of issues with stable fingerprints."""
    issues = [
        {
            "check_name": finding.code,
            "description": f"{finding.name}: {finding.message}",
            "fingerprint": finding.fingerprint,
            "severity": SEVERITIES[finding.severity],
            "location": {"path": finding.location.file, "lines": {"begin": finding.location.row}},
        }
        for finding in report.findings
    ]
    json.dump(issues, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")
