"""open_log and Log: what is found, what is counted, what stops."""

import gzip
import json

import pytest

from kvtool.errors import KvtoolError
from kvtool.logs.reader import open_log
from kvtool.logs.rows import Unreadable
from kvtool.prompts import paths

CHAT = '{"messages": [{"role": "user", "content": "%s"}]}'


def write(path, *lines):
    path.write_text("".join(line + "\n" for line in lines))
    return str(path)


def test_bad_lines_are_counted_by_reason_with_the_first_place(tmp_path):
    path = write(
        tmp_path / "log.jsonl",
        CHAT % "a",
        "{broken",
        "",
        '{"messages": []}',
        '{"messages": [{"content": "no role"}]}',
        "also broken",
        CHAT % "b",
        '{"messages": [{"role": "user", "content": 7}]}',
    )
    log = open_log([path])
    assert [request.messages[0]["content"] for request in log] == ["a", "b"]
    assert [(one.reason, one.rows, one.first) for one in log.skipped] == [
        ("not JSON", 2, f"{path}:2"),
        ("messages is empty", 1, f"{path}:4"),
        ("messages[].role is missing", 1, f"{path}:5"),
        ("messages[].content is neither text nor parts", 1, f"{path}:8"),
    ]


def test_a_broken_first_line_is_a_bad_row_like_any_other(tmp_path):
    path = write(tmp_path / "log.jsonl", '{"messages": [', CHAT % "a", CHAT % "b")
    log = open_log([path])
    assert len(list(log)) == 2
    assert [(one.rows, one.first) for one in log.skipped] == [(1, f"{path}:1")]


def test_rows_keep_what_could_not_be_read(tmp_path):
    path = write(tmp_path / "log.jsonl", CHAT % "a", "{broken", '{"messages": []}')
    rows = list(open_log([path]).rows())
    assert [len(row.requests) for row in rows] == [1, 0, 0]
    assert rows[1].value == Unreadable("not JSON", b"{broken\n")
    assert rows[2].value == {"messages": []}


def test_strict_stops_at_the_first_bad_row(tmp_path):
    path = write(tmp_path / "log.jsonl", CHAT % "a", "{broken")
    with pytest.raises(KvtoolError, match=r"log\.jsonl:2: not JSON"):
        list(open_log([path], strict=True))


@pytest.mark.parametrize("content", ["", "\n\n", "{broken\n", '{"messages": []}\n', "[]", "null\n"])
def test_never_quiet_when_nothing_could_be_read(tmp_path, content):
    path = tmp_path / "log.jsonl"
    path.write_text(content)
    with pytest.raises(KvtoolError):
        list(open_log([str(path)], format="openai-chat"))
    with pytest.raises(KvtoolError):
        list(open_log([str(path)]))


def test_an_unknown_schema_lists_its_columns_and_suggests_a_mapping(tmp_path):
    path = write(tmp_path / "odd.jsonl", '{"when": 1, "q": {"turns": [{"role": "user", "content": "a"}]}}')
    with pytest.raises(KvtoolError) as caught:
        open_log([path])
    assert caught.value.hint == "columns found: when, q, q.turns; try --map messages=q.turns"


def test_missing_paths_and_unknown_formats_are_the_users_errors(tmp_path):
    with pytest.raises(KvtoolError, match="no such file"):
        open_log([str(tmp_path / "absent.jsonl")])
    with pytest.raises(KvtoolError, match="no log files there"):
        open_log([str(tmp_path)])
    path = write(tmp_path / "log.jsonl", CHAT % "a")
    with pytest.raises(KvtoolError, match="unknown log format 'csv'"):
        open_log([path], format="csv")


def test_a_file_of_another_kind_among_logs_is_counted_not_fatal(tmp_path):
    write(tmp_path / "a.jsonl", CHAT % "a")
    write(tmp_path / "b.json", '[{"type": "function"}]')
    (tmp_path / "LICENSE").write_text("no log")
    log = open_log([str(tmp_path)])
    assert len(list(log)) == 1
    assert [(one.reason, one.first) for one in log.skipped] == [
        ("the file is in no known log format", f"{tmp_path / 'b.json'}:1")
    ]


def test_files_globs_and_formats_mix(tmp_path):
    write(tmp_path / "a.jsonl", CHAT % "a")
    write(tmp_path / "b.jsonl", '{"prompt": "b"}')
    log = open_log([str(tmp_path / "*.jsonl"), str(tmp_path / "a.jsonl")])
    assert log.format == "openai-chat,text"
    assert [request.text or request.messages[0]["content"] for request in log] == ["a", "b"]


@pytest.mark.parametrize(
    ("field", "value", "microseconds"),
    [
        ("timestamp", 1_700_000_000, 1_700_000_000_000_000),
        ("ts", 1_700_000_000.25, 1_700_000_000_250_000),
        ("created", "1700000000", 1_700_000_000_000_000),
        ("time", 1_700_000_000_123, 1_700_000_000_123_000),
        ("timestamp", 1_700_000_000_123_456, 1_700_000_000_123_456),
        ("startTime", 1_700_000_000_123_456_789, 1_700_000_000_123_457),
        ("created_at", "2023-11-14T22:13:20Z", 1_700_000_000_000_000),
        ("created_at", "2023-11-14T23:13:20.5+01:00", 1_700_000_000_500_000),
        ("created_at", "2023-11-14 22:13:20,5", 1_700_000_000_500_000),
        ("timestamp_ms", 1500, 1_500_000),
        ("timestamp", 2.5, 2_500_000),
        ("timestamp", True, None),
        ("timestamp", "yesterday", None),
        ("timestamp", float("nan"), None),
        ("timestamp", 10**40, None),
        ("timestamp", -5, None),
    ],
)
def test_times_in_every_unit(tmp_path, field, value, microseconds):
    row = {**json.loads(CHAT % "a"), field: value}
    path = write(tmp_path / "log.jsonl", json.dumps(row))
    assert [request.arrival for request in open_log([path])] == [microseconds]


def test_lone_surrogates_become_a_replacement_character(tmp_path):
    path = write(tmp_path / "log.jsonl", CHAT % "a\\ud800b \\ud83d\\ude00")
    assert [request.messages[0]["content"] for request in open_log([path])] == ["a\ufffdb \U0001f600"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\n \n", "the file holds no rows"),
        ('{"prompt": "a"}\n'.encode("utf-16"), r"no row can be decoded \(row 1: not UTF-8\)"),
        (gzip.compress(b'{"prompt": "a"}\n' * 9)[:20], r"decoded \(row 1: the compressed data is damaged"),
    ],
    ids=["blank", "utf-16", "cut gzip"],
)
def test_a_file_without_a_readable_row_says_why(tmp_path, data, said):
    (tmp_path / "log.jsonl").write_bytes(data)
    with pytest.raises(KvtoolError, match=said):
        open_log([str(tmp_path / "log.jsonl")])


def test_a_model_is_named_where_the_row_has_it(samples):
    named = set()
    for sample in sorted(samples.iterdir()):
        if sample.suffix != ".md" and sample.name != "openai-batch-output.jsonl":
            for row in open_log([str(sample)]).rows():
                for request in row.requests:
                    if request.model is not None:
                        path = request.source_path("model")
                        assert paths.get(row.value, paths.parse(path)) == request.model, (sample, path)
                        named.add(path)
    assert {"body.model", "message.model", "request.model"} <= named
    assert any(path.startswith(("events[", "samples[0].events[")) for path in named)
