"""Whatever is in a file: no traceback, no hang, and the rows that are whole keep their requests."""

import gzip
import io
import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtool.errors import KvtoolError
from kvtool.logs.reader import open_log
from kvtool.templates import ChatMLTools

SAMPLES = Path(__file__).resolve().parent.parent / "data/formats"
ROWS = {
    path.stem: [json.loads(line) for line in path.read_text().splitlines()[:12]]
    if path.suffix == ".jsonl"
    else (value if isinstance(value := json.loads(path.read_text()), list) else [value])
    for path in sorted(SAMPLES.iterdir())
    if path.suffix in (".jsonl", ".json", ".traj") and path.stem not in ("README", "openai-batch-output")
}
STATELESS = sorted(
    name
    for name in ROWS
    if not name.startswith(
        ("otel-", "claude-", "block-hashes-deltas", "block-hashes-bailian", "openai-responses")
    )
)
FUZZ = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(["", "[]", "{", '{"role": 1}', "attachment://x", "\ud800", "9" * 30, "2025-13-01"])
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "function", "x"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


def places(value, path=()):
    yield path
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, item in children:
        yield from places(item, (*path, key))


def changed(value, path, new):
    """A copy with `new` at `path`; `...` as `new` takes the place away."""
    if not path:
        return None if new is ... else new
    copy = value.copy()
    if len(path) == 1 and new is ...:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


def read(path: Path):
    """The requests, every prompt rendered; None where nothing could be read."""
    try:
        log = open_log([str(path)])
        requests = list(log)
    except KvtoolError as error:
        assert error.message and "\n" not in error.message
        return None, None
    for request in requests:
        if request.messages is not None:
            assert request.messages
            ChatMLTools().render(request.messages, request.tools).text.encode()
    return log, requests


def told(requests):
    return [(r.source.row, r.messages, r.tools, r.text, str(r.token_ids), str(r.block_ids)) for r in requests]


@pytest.mark.parametrize("name", sorted(ROWS))
@FUZZ
@given(data=st.data())
def test_mutated_rows(tmp_path_factory, name, data):
    rows = ROWS[name]
    at = data.draw(st.integers(0, len(rows) - 1))
    mutated = list(rows)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(places(mutated[at]))))
        mutated[at] = changed(mutated[at], path, data.draw(st.just(...) | ODD))
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in mutated))
    (folder / "log.json").write_text(json.dumps(mutated))
    _, by_line = read(folder / "log.jsonl")
    _, in_array = read(folder / "log.json")
    if by_line is not None and in_array is not None:
        assert told(by_line) == told(in_array)
    if name in STATELESS and len(rows) > 2 and by_line is not None:
        (folder / "whole.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        _, whole = read(folder / "whole.jsonl")
        others = [one for one in told(whole) if one[0] != at + 1]
        assert [one for one in told(by_line) if one[0] != at + 1] == others


LINES = [f'{{"messages": [{{"role": "user", "content": "question {number}"}}]}}' for number in range(40)]
WHOLE = ("\n".join(LINES) + "\n").encode()


def zipped():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.jsonl", WHOLE)
    return out.getvalue()


def parquet():
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([json.loads(line) for line in LINES]), out, row_group_size=8)
    return out.getvalue()


PACKED = {
    "plain.jsonl": WHOLE,
    "log.jsonl.gz": gzip.compress(WHOLE),
    "log.jsonl.zst": zstandard.compress(WHOLE),
    "log.zip": zipped(),
    "log.parquet": parquet(),
    "log.json": json.dumps([json.loads(line) for line in LINES]).encode(),
}


@pytest.mark.parametrize("name", sorted(PACKED))
@FUZZ
@given(data=st.data())
def test_truncation_never_changes_what_is_left(tmp_path_factory, name, data):
    whole = PACKED[name]
    length = data.draw(st.integers(0, len(whole) - 1))
    path = tmp_path_factory.mktemp("cut") / name
    path.write_bytes(whole[:length])
    log, requests = read(path)
    if requests is None:
        return
    texts = [request.messages[0]["content"] for request in requests]
    assert texts == [f"question {number}" for number in range(len(texts))]
    if len(texts) < 40 and not (name == "plain.jsonl" and whole[length - 1 : length + 1].count(b"\n")):
        assert log.skipped


@pytest.mark.parametrize("name", sorted(set(PACKED) - {"log.parquet"}))
@FUZZ
@given(data=st.data())
def test_flipped_bytes(tmp_path_factory, name, data):
    whole = bytearray(PACKED[name])
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("flip") / name
    path.write_bytes(bytes(whole))
    _, requests = read(path)
    assert requests is None or len(requests) <= 40


@FUZZ
@given(
    content=st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "replace"))
)
@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.csv", "x.yaml", "x.parquet", "x.zip"])
def test_any_bytes_at_all(tmp_path_factory, name, content):
    path = tmp_path_factory.mktemp("any") / name
    path.write_bytes(content)
    read(path)
