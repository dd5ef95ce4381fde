"""sarif: SARIF 2.1.0, for code scanning. Fingerprints hold across runs, whatever the row."""

import json
import sys
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from kvtool.report import Finding, Report

LEVELS = {"error": "error", "warning": "warning", "info": "note"}
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render(report: Report) -> None:
    """One run with the rules that have results, and one result per finding."""
    codes = sorted({finding.code for finding in report.findings})
    pages = {rule["code"]: rule for rule in report.data.get("rules", [])}
    rules = [_rule(code, report.findings, pages.get(code, {})) for code in codes]
    document = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "kvtool", "rules": rules}},
                "results": [_result(finding, codes.index(finding.code)) for finding in report.findings],
                "columnKind": "unicodeCodePoints",
            }
        ],
    }
    json.dump(document, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def _rule(code: str, findings: list[Finding], page: dict[str, Any]) -> dict[str, Any]:
    name = next(finding.name for finding in findings if finding.code == code)
    rule: dict[str, Any] = {"id": code, "name": name}
    if page:
        rule["shortDescription"] = {"text": page["what"]}
        rule["fullDescription"] = {"text": f"{page['what']} {page['why']}"}
        rule["help"] = {"text": page["instead"]}
    return rule


def _result(finding: Finding, index: int) -> dict[str, Any]:
    place = finding.location
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": LEVELS[finding.severity],
        "message": {"text": f"{finding.message} ({finding.lost_tokens:,} lost tokens)"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(place.file)},
                    "region": {"startLine": place.row},
                },
                "logicalLocations": [{"fullyQualifiedName": place.path or finding.slot, "kind": "member"}],
            }
        ],
        "partialFingerprints": {"kvtool/v1": finding.fingerprint},
        "properties": {
            "slot": finding.slot,
            "lost_tokens": finding.lost_tokens,
            "hit_rate_if_fixed": finding.hit_rate_if_fixed,
            "fix": finding.fix.action,
        },
    }


def _uri(file: str) -> str:
    path = PurePath(file)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())
