"""--map: a schema of one's own."""

import json

import pytest

from kvtool.errors import KvtoolError
from kvtool.logs.reader import open_log


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [str(path)]


TURNS = [{"role": "user", "content": "hello there"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def test_every_field_can_be_mapped(tmp_path):
    row = {
        "meta": {"at": 1_700_000_000, "who": {"thread": 7}},
        "call": json.dumps({"turns": TURNS, "kit": [TOOL], "llm": "m"}),
        "usage": [{"out": 5}],
        "org": "o",
        "key": "k1",
    }
    mapping = {
        "messages": "call.turns",
        "tools": "call.kit",
        "model": "call.llm",
        "time": "meta.at",
        "session": "meta.who.thread",
        "tenant": "org",
        "id": "key",
        "output_tokens": "usage[0].out",
    }
    (request,) = open_log(write(tmp_path / "odd.jsonl", row), mapping=mapping)
    assert request.messages == TURNS and request.tools == [TOOL] and request.model == "m"
    assert (request.arrival, request.session, request.tenant) == (1_700_000_000_000_000, "7", "o")
    assert (request.id, request.output_tokens) == ("k1", 5)
    assert request.source_path("messages[0].content") == "call:json.turns[0].content"
    assert request.source_path("tools[0]") == "call:json.kit[0]"


@pytest.mark.parametrize(
    ("field", "value", "attribute", "expected"),
    [
        ("text", "some words", "text", "some words"),
        ("prompt", "some words", "text", "some words"),
        (
            "body",
            {"system": "s", "messages": TURNS},
            "messages",
            [{"role": "system", "content": "s"}, *TURNS],
        ),
    ],
)
def test_other_prompts(tmp_path, field, value, attribute, expected):
    (request,) = open_log(write(tmp_path / "odd.jsonl", {"x": {"y": value}}), mapping={field: "x.y"})
    assert getattr(request, attribute) == expected


def test_token_ids(tmp_path):
    (request,) = open_log(write(tmp_path / "odd.jsonl", {"x": [3, 4, 5]}), mapping={"token_ids": "x"})
    assert request.token_ids.tolist() == [3, 4, 5]


def test_rows_without_the_field_are_bad_rows(tmp_path):
    paths = write(tmp_path / "odd.jsonl", {"x": "a b"}, {"y": 1}, {"x": 5})
    log = open_log(paths, mapping={"text": "x"})
    assert [request.text for request in log] == ["a b"]
    assert [(one.reason, one.rows) for one in log.skipped] == [("nothing at x", 1), ("x is not text", 1)]


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"colour": "x"}, "no such field"),
        ({"model": "x"}, "must name one of"),
        ({"text": "x", "messages": "x"}, "must name one of"),
        ({"text": "absent"}, "nothing at the mapped path"),
    ],
)
def test_mistakes_are_explained(tmp_path, mapping, message):
    with pytest.raises(KvtoolError, match=message):
        open_log(write(tmp_path / "odd.jsonl", {"x": "a b"}), mapping=mapping)


def test_suggestions(tmp_path):
    for row, suggestion in (
        ({"a": {"b": TURNS}}, "messages=a.b"),
        ({"ids": [4, 5, 6]}, "token_ids=ids"),
        ({"short": "a b", "long": "a much longer text"}, "text=long"),
    ):
        with pytest.raises(KvtoolError) as caught:
            open_log(write(tmp_path / "odd.jsonl", row))
        assert caught.value.hint.endswith(f"try --map {suggestion}")
