"""json: the command's JSON document on stdout. Same report, same bytes."""

import json
import sys

from kvtool.report import Report


def render(report: Report) -> None:
    """Write `report.data`, indented, keys in the contract's order."""
    json.dump(report.data, sys.stdout, indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")
