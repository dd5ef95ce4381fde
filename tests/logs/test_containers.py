"""Every container gives the same rows; a damaged one gives those before the damage, and says so."""

import gzip
import io
import json
import os
import sys
import threading
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
import zstandard

from kvtool.errors import KvtoolError
from kvtool.logs.reader import open_log

TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}},
}
ROWS = [
    {
        "timestamp": 1_700_000_000 + number,
        "messages": [
            {"role": "system", "content": "Be brief: äöü 漢字."},
            {"role": "user", "content": f"question {number}"},
        ],
        "tools": [TOOL],
    }
    for number in range(50)
]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def told(path):
    return [(request.arrival, request.messages, request.tools) for request in open_log([str(path)])]


EXPECTED = [(row["timestamp"] * 1_000_000, row["messages"], row["tools"]) for row in ROWS]


def zipped(data):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("logs/a.jsonl", data)
        archive.writestr("readme.md", "no log")
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("log.jsonl", LINES),
        ("bom.jsonl", b"\xef\xbb\xbf" + LINES),
        ("crlf.jsonl", LINES.replace(b"\n", b"\r\n")),
        ("open.jsonl", LINES.rstrip(b"\n")),
        ("array.json", json.dumps(ROWS).encode()),
        ("pretty.json", json.dumps(ROWS, indent=2).encode()),
        ("objects.json", "\n".join(json.dumps(row, indent=1) for row in ROWS).encode()),
        ("log.jsonl.gz", gzip.compress(LINES)),
        ("two-members.jsonl.gz", gzip.compress(LINES[:5000]) + gzip.compress(LINES[5000:])),
        ("log.jsonl.zst", zstandard.compress(LINES)),
        ("two-frames.jsonl.zst", zstandard.compress(LINES[:5000]) + zstandard.compress(LINES[5000:])),
        ("named-wrongly.txt", gzip.compress(LINES)),
        ("log.yaml", yaml.safe_dump_all(ROWS).encode()),
        ("log.zip", zipped(LINES)),
        ("log-in-gz.zip", zipped(LINES)),
    ],
)
def test_containers_give_the_same_rows(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    assert told(path) == EXPECTED


def test_parquet_nested_and_as_json_strings(tmp_path):
    nested = tmp_path / "nested.parquet"
    mixed = [dict(row) for row in ROWS]
    mixed[3] = {**mixed[3], "messages": [{"role": "user", "content": "x", "name": "ann"}]}
    pq.write_table(pa.Table.from_pylist(mixed), nested, row_group_size=7)
    expected = [(row["timestamp"] * 1_000_000, row["messages"]) for row in mixed]
    assert [one[:2] for one in told(nested)] == expected  # no null `name` where a row has none
    texts = tmp_path / "texts.parquet"
    rows = [
        {**row, "messages": json.dumps(row["messages"]), "tools": json.dumps(row["tools"])} for row in ROWS
    ]
    pq.write_table(pa.Table.from_pylist(rows), texts)
    assert told(texts) == EXPECTED
    request = next(iter(open_log([str(texts)])))
    assert request.source_path("messages[1].content") == "messages:json[1].content"


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_header_tells_what_separates_cells(tmp_path, delimiter):
    path = tmp_path / "log.csv"
    path.write_text(f'time{delimiter}prompt\n1700000000{delimiter}"a{delimiter} b"\n')
    (request,) = open_log([str(path)])
    assert (request.text, request.arrival) == (f"a{delimiter} b", 1_700_000_000_000_000)


def test_csv_cells_may_hold_json(tmp_path):
    import csv

    path = tmp_path / "log.csv"
    with path.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["timestamp", "messages", "tools", "empty"])
        for row in ROWS:
            writer.writerow([row["timestamp"], json.dumps(row["messages"]), json.dumps(row["tools"]), ""])
        out.write("one,cell\n")
    log = open_log([str(path)])
    assert [(r.arrival, r.messages, r.tools) for r in log] == EXPECTED
    assert [(one.reason, one.first) for one in log.skipped] == [
        ("the number of cells is not the header's", f"{path}:51")
    ]


def test_stdin(monkeypatch):
    class Stdin:
        buffer = io.BytesIO(gzip.compress(LINES))

    monkeypatch.setattr(sys, "stdin", Stdin)
    log = open_log(["-"])
    assert [(r.arrival, r.messages, r.tools) for r in log] == EXPECTED
    assert log.files == ["-"]


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_pipe_is_read_once_and_whole(tmp_path, compress):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(compress(LINES),))
    writer.start()
    assert len(list(open_log([str(pipe)]))) == len(ROWS)
    writer.join()


def test_a_file_that_cannot_be_read_is_named():
    with pytest.raises(KvtoolError, match="/proc/self/mem"):
        open_log(["/proc/self/mem"])


def test_elements_longer_than_a_chunk(tmp_path):
    rows = [{"prompt": letter * 3_000_000} for letter in "abc"]
    path = tmp_path / "long.json"
    path.write_text(json.dumps(rows))
    assert [request.text for request in open_log([str(path)])] == [row["prompt"] for row in rows]


def test_a_broken_element_of_an_array_is_one_bad_row(tmp_path):
    path = tmp_path / "array.json"
    path.write_text('[{"prompt": "a b"},\n {"prompt": bad, "x": "},]"},\n {"prompt": "c"}]')
    log = open_log([str(path)])
    assert [request.text for request in log] == ["a b", "c"]
    assert [(one.reason, one.rows, one.first) for one in log.skipped] == [("not JSON", 1, f"{path}:2")]


@pytest.mark.parametrize("stray", [",", "}", "]", "]]", "x", '"', "\x00"])
def test_stray_characters_between_objects_do_not_stop_the_reader(tmp_path, stray):
    path = tmp_path / "objects.json"
    path.write_text('{\n"prompt": "a b"\n}\n' + stray + '\n{\n"prompt": "c"\n}\n')
    log = open_log([str(path)])
    found = [request.text for request in log]
    assert found[0] == "a b" and log.skipped


def test_an_array_that_ends_early(tmp_path):
    path = tmp_path / "array.json"
    path.write_text(json.dumps([{"prompt": "a"}, {"prompt": "b"}])[:-6])
    log = open_log([str(path)])
    assert [request.text for request in log] == ["a"]
    assert [(one.reason, one.rows, one.first) for one in log.skipped] == [
        ("the file ends early", 1, f"{path}:2")
    ]


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress, zipped], ids=["gz", "zst", "zip"])
def test_cut_compressed_data_gives_what_comes_before_and_says_so(tmp_path, compress):
    whole = compress(LINES)
    for length in range(1, len(whole), max(1, len(whole) // 25)):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(whole[:length])
        try:
            log = open_log([str(path)])
            found = [(r.arrival, r.messages, r.tools) for r in log]
        except KvtoolError:
            continue
        assert found == EXPECTED[: len(found)]
        assert log.skipped or found == EXPECTED


def test_a_zip_without_logs_says_so(tmp_path):
    path = tmp_path / "log.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.md", "no log")
    with pytest.raises(KvtoolError, match="no log files in the archive"):
        open_log([str(path)])


def test_cut_parquet_is_refused(tmp_path):
    path = tmp_path / "log.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    whole = path.read_bytes()
    for length in (5, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(KvtoolError):
            list(open_log([str(path)]))


def test_yaml_bombs_and_objects_are_refused(tmp_path):
    path = tmp_path / "bomb.yaml"
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for previous, letter in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{letter}: &{letter} [{', '.join([f'*{previous}'] * 9)}]")
    path.write_text("\n".join(lines))
    with pytest.raises(KvtoolError):
        list(open_log([str(path)]))
    path.write_text("!!python/object/apply:os.system ['touch executed']")
    with pytest.raises(KvtoolError):
        list(open_log([str(path)]))
    path.write_text("a: &a [*a]")
    with pytest.raises(KvtoolError):
        list(open_log([str(path)]))


@pytest.mark.parametrize("broken", ["[" * 5000 + "]" * 5000, '[{"messages": ', "[1, 2", "{", '"'])
def test_a_broken_first_line_is_a_bad_row_whatever_it_begins_with(tmp_path, broken):
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join([broken, *(json.dumps(row) for row in ROWS)]) + "\n")
    log = open_log([str(path)])
    assert len(list(log)) == len(ROWS)
    assert [(skipped.rows, skipped.first) for skipped in log.skipped] == [(1, f"{path}:1")]


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("form", ["[\n{}\n]\n", "[{}]", "[{}\n]", "[\n{}]"])
def test_an_array_with_an_element_a_line_is_an_array(tmp_path, count, form):
    path = tmp_path / "log.json"
    path.write_text(form.replace("{}", ",\n".join(json.dumps(row) for row in (ROWS * 7)[:count])))
    log = open_log([str(path)])
    assert len(list(log)) == count and log.skipped == []
