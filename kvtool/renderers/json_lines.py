"""json-lines: one finding object a line, for jq and log pipelines."""

import json
import sys

from kvtool.report import Report


def render(report: Report) -> None:
    """The FINDING objects of the JSON contract."""
    for finding in report.findings:
        sys.stdout.write(json.dumps(finding.to_json(), ensure_ascii=False, allow_nan=False) + "\n")
