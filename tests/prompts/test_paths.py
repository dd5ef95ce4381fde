"""JSON paths: parse, read, change."""

import pytest

from kvtool.prompts import paths


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("messages[0].content", ("messages", 0, "content")),
        ("input:json.messages[2]", ("input", ":json", "messages", 2)),
        ('attributes["a.b"][0]', ("attributes", "a.b", 0)),
        ("", ()),
    ],
)
def test_parse(path: str, steps: tuple[object, ...]) -> None:
    assert paths.parse(path) == steps


def test_parse_refuses_what_is_no_path() -> None:
    with pytest.raises(ValueError, match="not a path"):
        paths.parse("a[b]")


def test_child_is_the_inverse_of_parse() -> None:
    path = ""
    steps = ("tools", 3, "a key.with [signs]", "b")
    for step in steps:
        path = paths.child(path, step)
    assert paths.parse(path) == steps


def test_get_and_changed_look_inside_json_strings_and_leave_the_original_alone() -> None:
    row = {"input": '{"messages": [{"content": "é"}]}', "other": [1]}
    steps = paths.parse("input:json.messages[0].content")
    assert paths.get(row, steps) == "é"
    new = paths.changed(row, steps, str.upper)
    assert paths.get(new, steps) == "É"
    assert row["input"] == '{"messages": [{"content": "é"}]}'
    assert new["other"] is row["other"]
    assert paths.get(row, paths.parse("other[1]")) is paths.MISSING
