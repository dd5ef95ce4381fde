"""sarif: the parts that code scanning reads."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from jsonschema.validators import validator_for

from kvtool.cli import main
from kvtool.renderers.sarif import render
from kvtool.report import Finding, Report

ROOT = Path(__file__).resolve().parent.parent.parent
SCHEMA = json.loads((ROOT / "tests/data/schemas/sarif-2.1.0-rtm.5.json").read_text(encoding="utf-8"))
VALIDATOR = validator_for(SCHEMA)(SCHEMA)


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


@pytest.mark.parametrize("count", [0, 2])
def test_the_document_is_valid_by_the_schema_of_sarif(
    capsys: pytest.CaptureFixture[str], finding: Finding, count: int
) -> None:
    page = {"code": "KV101", "what": "Finds a clock.", "why": "It moves.", "instead": "Say it last."}
    place = replace(finding.location, file="/abs/é %.jsonl", path="", role=None)
    other = replace(finding, code="KV702", severity="info", location=place, slot="{a}\n\x1b[31m")
    render(Report({"rules": [page]}, findings=[finding, other][:count]))
    document = json.loads(capsys.readouterr().out)
    VALIDATOR.validate(document)
    assert len(document["runs"][0]["results"]) == count
    del document["runs"][0]["tool"]["driver"]["name"]
    assert not VALIDATOR.is_valid(document)  # the schema does look


def test_a_lint_run_of_templates_and_logs_is_valid_sarif(tmp_path: Path) -> None:
    template = tmp_path / "prompt.j2"
    template.write_text("Now: {{ now() }}\n" + "Be brief and kind, and never invent a price. " * 20)
    log = ROOT / "samples/airline-chat.jsonl"
    run = ["lint", str(log), str(template), "--tokenizer", "bytes", "--output-format", "sarif"]
    document = json.loads(CliRunner().invoke(main, run).stdout)
    VALIDATOR.validate(document)
    results = document["runs"][0]["results"]
    assert {one["ruleId"] for one in results} == {"KV101", "KV201"}
    assert len({one["partialFingerprints"]["kvtool/v1"] for one in results}) == len(results) == 3
    assert all(one["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] for one in results)
