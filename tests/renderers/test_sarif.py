"""sarif: the parts that code scanning reads."""

import json
from dataclasses import replace

import pytest

from kvtool.renderers.sarif import render
from kvtool.report import Finding, Report


def test_results_name_rule_place_and_fingerprint(
    capsys: pytest.CaptureFixture[str], finding: Finding
) -> None:
    page = {"code": "KV101", "what": "Finds a clock.", "why": "It moves.", "instead": "Say it last."}
    other = replace(finding, code="KV100", name="unnamed-slot", severity="info")
    render(Report({"rules": [page]}, findings=[finding, other]))
    run = json.loads(capsys.readouterr().out)["runs"][0]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["KV100", "KV101"]
    assert run["tool"]["driver"]["rules"][1]["shortDescription"] == {"text": "Finds a clock."}
    result = run["results"][0]
    assert (result["ruleId"], result["ruleIndex"], result["level"]) == ("KV101", 1, "error")
    assert result["partialFingerprints"] == {"kvtool/v1": "f00d"}
    place = result["locations"][0]
    assert place["physicalLocation"]["artifactLocation"] == {"uri": "logs/a%20b.jsonl"}
    assert place["physicalLocation"]["region"] == {"startLine": 7}
    assert place["logicalLocations"][0]["fullyQualifiedName"] == "messages[0].content"
    assert run["results"][1]["level"] == "note"
