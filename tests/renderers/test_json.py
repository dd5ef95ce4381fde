"""json: the document and nothing else, in the order it was given."""

import json

import pytest

from kvtool.renderers.json import render
from kvtool.report import Report


def test_only_the_document_reaches_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    data = {"schema": "x/1", "b": 1, "a": [0.373380, "é \u2028"]}
    render(Report(data, headline=["not printed"], notes=["nor this"]))
    out, err = capsys.readouterr()
    assert json.loads(out) == data
    assert list(json.loads(out)) == ["schema", "b", "a"]
    assert "é" in out and out.endswith("}\n") and err == ""


def test_a_value_that_json_lacks_is_a_bug_not_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        render(Report({"rate": float("nan")}))
