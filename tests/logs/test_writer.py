"""write_log: what is read back equals what was written, in the container it came from."""

import gzip
import json
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
import zstandard

from kvtool.errors import KvtoolError
from kvtool.logs.reader import open_log
from kvtool.logs.rows import Unreadable
from kvtool.logs.writer import write_log


def copy(paths, target, change=lambda value: value):
    log = open_log([str(path) for path in paths])
    write_log(target, ((row.source, change(row.value)) for row in log.rows()), log)


def told(path):
    return [(r.arrival, r.messages, r.tools, r.text) for r in open_log([str(path)])]


NAMES = ["openai-chat.jsonl", "tau-bench.json", "langfuse-langgraph-python.json", "vcr.yaml", "sharegpt.json"]


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_says_the_same(samples, tmp_path, name):
    copy([samples / name], tmp_path / name)
    assert told(tmp_path / name) == told(samples / name)


def test_an_edited_row_is_written_and_the_rest_is_untouched(samples, tmp_path):
    def shout(value):
        if isinstance(value, dict) and "session_id" in value and "messages" in value:
            first, *rest = value["messages"]
            return {**value, "messages": [{**first, "content": "SHORT"}, *rest]}
        return value

    copy([samples / "openai-chat.jsonl"], tmp_path / "out.jsonl", shout)
    old = (samples / "openai-chat.jsonl").read_text().splitlines()
    new = (tmp_path / "out.jsonl").read_text().splitlines()
    assert json.loads(new[0])["messages"][0]["content"] == "SHORT"
    assert [json.loads(line) for line in new[1:]] == [json.loads(line) for line in old[1:]]


def test_unreadable_lines_are_kept(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a"}\n{broken\n{"prompt": "b"}\n')
    copy([source], tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == source.read_text()


@pytest.mark.parametrize(
    ("suffix", "unpack"),
    [
        (".gz", gzip.decompress),
        (".zst", lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)),
    ],
)
def test_compression_goes_by_the_name(samples, tmp_path, suffix, unpack):
    target = tmp_path / f"out.jsonl{suffix}"
    copy([samples / "text.jsonl"], target)
    assert [json.loads(line)["prompt"] for line in unpack(target.read_bytes()).splitlines()] == [
        request.text for request in open_log([str(samples / "text.jsonl")])
    ]
    again = tmp_path / f"again.jsonl{suffix}"
    copy([target], again)
    assert again.read_bytes() == target.read_bytes()  # same rows, same bytes


def test_parquet_keeps_its_schema(tmp_path):
    rows = [
        {
            "messages": [{"role": "user", "content": f"q{n}", "name": None if n else "ann"}],
            "ts": n,
            "raw": "[1]",
        }
        for n in range(20)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    copy([tmp_path / "in.parquet"], tmp_path / "out.parquet")
    old, new = pq.read_table(tmp_path / "in.parquet"), pq.read_table(tmp_path / "out.parquet")
    assert old.equals(new)


def test_csv_and_yaml(tmp_path):
    source = tmp_path / "in.csv"
    source.write_text('ts,prompt,x\n1700000000,"one, two",\n1700000001,"three ""four""\nfive",7\n')
    copy([source], tmp_path / "out.csv")
    assert told(tmp_path / "out.csv") == told(source)
    assert (tmp_path / "out.csv").read_text().splitlines()[0] == "ts,prompt,x"
    pages = tmp_path / "in.yaml"
    pages.write_text(yaml.safe_dump_all([{"prompt": "a: b\n"}, {"prompt": "c"}]))
    copy([pages], tmp_path / "out.yaml")
    assert told(tmp_path / "out.yaml") == told(pages)


def test_an_eval_keeps_its_other_members(samples, tmp_path):
    source = samples / "inspect-ai-message-deduplication.eval"
    copy([source], tmp_path / "out.eval")
    assert told(tmp_path / "out.eval") == told(source)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(tmp_path / "out.eval") as new:
        assert sorted(old.namelist()) == sorted(new.namelist())
        for name in old.namelist():
            assert json.loads(old.read(name)) == json.loads(new.read(name))


def test_several_files_become_a_folder(samples, tmp_path):
    names = ["text.jsonl", "tau-bench.json", "inspect-ai-formats.eval"]
    copy([samples / name for name in names], tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(names)
    for name in names:
        assert told(tmp_path / "out" / name) == told(samples / name)


def test_the_input_is_never_written_over(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a"}\n')
    with pytest.raises(KvtoolError, match="is the input"):
        copy([source], source)
    with pytest.raises(KvtoolError, match="no such folder"):
        copy([source], tmp_path / "absent/out.jsonl")
    assert source.read_text() == '{"prompt": "a"}\n'


def test_nothing_is_left_behind_when_rows_fail(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')

    def fail(value):
        raise RuntimeError(str(value))

    with pytest.raises(RuntimeError):
        copy([source], tmp_path / "out.jsonl", fail)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]


def test_unreadable_is_what_rows_hand_out(tmp_path):
    source = tmp_path / "in.json"
    source.write_text('[{"prompt": "a"}, {"prompt": bad}]')
    rows = list(open_log([str(source)]).rows())
    assert rows[1].value == Unreadable("not JSON", b'{"prompt": bad}')


def test_files_of_one_name_keep_their_folders(tmp_path):
    for day, text in (("mon", "a"), ("tue", "b")):
        (tmp_path / "logs" / day).mkdir(parents=True)
        (tmp_path / "logs" / day / "log.jsonl").write_text(json.dumps({"prompt": text}) + "\n")
    copy([tmp_path / "logs"], tmp_path / "out")
    written = {
        str(path.relative_to(tmp_path / "out")): json.loads(path.read_text())["prompt"]
        for path in (tmp_path / "out").rglob("*.jsonl")
    }
    assert written == {"mon/log.jsonl": "a", "tue/log.jsonl": "b"}
    with pytest.raises(KvtoolError, match="is the input"):
        copy([tmp_path / "logs"], tmp_path / "logs")


def test_one_file_is_not_written_to_a_folder(samples, tmp_path):
    with pytest.raises(KvtoolError, match="is a folder") as raised:
        copy([samples / "text.jsonl"], tmp_path)
    assert raised.value.hint == f"name a file, such as {tmp_path / 'text.jsonl'}"
    assert not list(tmp_path.iterdir())
