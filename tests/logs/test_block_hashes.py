"""block-hashes: Mooncake, Bailian and per-turn deltas; the columns say what the rows say."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.logs.reader import open_log
from kvtool.logs.traces import trace_batches


def rows_of(samples, name):
    return [json.loads(line) for line in (samples / name).read_text().splitlines()]


def test_mooncake(samples, read):
    log, requests = read("block-hashes-mooncake.jsonl")
    assert log.format == "block-hashes"
    for row, request in zip(rows_of(samples, "block-hashes-mooncake.jsonl"), requests, strict=True):
        assert request.block_ids.ids.tolist() == row["hash_ids"]
        assert (request.block_ids.block_size, request.block_ids.tokens) == (512, row["input_length"])
        assert (request.arrival, request.output_tokens) == (row["timestamp"] * 1000, row["output_length"])


def test_bailian_has_blocks_of_16_seconds_and_chains_of_chats(samples, read):
    _, requests = read("block-hashes-bailian.jsonl")
    root: dict[int, int] = {}
    for row, request in zip(rows_of(samples, "block-hashes-bailian.jsonl"), requests, strict=True):
        parent = row["parent_chat_id"]
        root[row["chat_id"]] = row["chat_id"] if parent == -1 else root[parent]
        assert request.session == str(root[row["chat_id"]])
        assert request.arrival == round(row["timestamp"] * 1e6)
        assert request.block_ids.block_size == 16
    assert 1 < len(set(root.values())) < len(root)


def block_hit_rate(requests):
    seen, hits, total = set(), 0, 0
    for request in requests:
        ids = request.block_ids.ids.tolist()
        total += len(ids)
        for one in ids:
            if one not in seen:
                break
            hits += 1
        seen.update(ids)
    return hits / total


def test_deltas_continue_their_session(samples, read):
    log, requests = read("block-hashes-deltas.jsonl")
    so_far: dict[str, list[int]] = {}
    naive = 0
    for row, request in zip(rows_of(samples, "block-hashes-deltas.jsonl"), requests, strict=True):
        so_far.setdefault(row["session_id"], []).extend(row["hash_ids"])
        naive += len(row["hash_ids"])
        assert request.block_ids.ids.tolist() == so_far[row["session_id"]]
        assert len(request.block_ids.ids) == -(-request.block_ids.tokens // 64)
    assert naive == len(
        {one for r in requests for one in r.block_ids.ids.tolist()}
    )  # read naively: no hit at all
    assert block_hit_rate(requests) > 0.6
    assert any("added to the session's earlier ones" in note for note in log.notes)


def test_a_clock_at_the_head_is_no_delta(tmp_path, read):
    rows = []
    for turn in range(1, 6):
        ids = [turn * 100 + block for block in range(turn * 2)]
        rows.append({"session_id": "a", "timestamp": turn, "input_length": turn * 2 * 512, "hash_ids": ids})
    path = tmp_path / "clock.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, requests = read(str(path))
    assert [request.block_ids.ids.tolist() for request in requests] == [row["hash_ids"] for row in rows]


def both_ways(path):
    """The same file row by row and as columns, in one comparable form."""
    by_rows = open_log([str(path)])
    rows = [
        (
            request.id,
            request.source.row,
            request.arrival,
            request.session,
            request.block_ids.tokens,
            request.output_tokens,
            request.block_ids.ids.tolist(),
        )
        for request in by_rows
    ]
    by_columns = open_log([str(path)])
    columns = []
    for batch in trace_batches(by_columns):
        for index in range(len(batch)):
            ids = batch.ids[batch.offsets[index] : batch.offsets[index + 1]]
            columns.append(
                (
                    batch.names[index] if batch.names else f"{path}:{batch.rows[index]}",
                    batch.rows[index],
                    None if batch.arrival[index] == -1 else batch.arrival[index],
                    batch.sessions[index] if batch.sessions else None,
                    batch.tokens[index],
                    None if batch.output[index] == -1 else batch.output[index],
                    ids.tolist(),
                )
            )
    assert by_rows.skipped == by_columns.skipped
    assert by_rows.notes == by_columns.notes
    return rows, columns


@pytest.mark.parametrize("kind", ["mooncake", "synthetic", "bailian", "deltas"])
def test_columns_equal_rows(samples, kind):
    rows, columns = both_ways(samples / f"block-hashes-{kind}.jsonl")
    assert rows == columns and rows


LINES = st.sampled_from(
    [
        b'{"timestamp": 5, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}',
        b'{"timestamp": 5.25, "input_length": 512, "hash_ids": [9223372036854775807]}',
        b' { "hash_ids" : [ ] , "input_length" : 0 , "type" : "text" } \r',
        b'{"timestamp": 7, "input_length": 600, "hash_ids": [1, 2, 3]}',
        b'{"timestamp": 7, "input_length": 600, "hash_ids": [1, 2.0]}',
        b'{"timestamp": 7, "input_length": 600, "hash_ids": [01, 2]}',
        b'{"timestamp": null, "input_length": 600, "hash_ids": [1, 2]}',
        b'{"timestamp": 8, "input_length": "600", "hash_ids": [1, 2]}',
        b'{"timestamp": 8, "input_length": 600, "hash_ids": [1, 2], "model": "m"}',
        b'{"timestamp": 8, "input_length": 600, "hash_ids": [1, 2], "input_length": 512}',
        b'{"timestamp": -3, "input_length": 600, "output_length": -1, "hash_ids": [-1, 2]}',
        b'{"timestamp": 1e3, "input_length": 600, "hash_ids": [1, 2]}',
        b'{"timestamp": 8, "input_length": 600, "hash_ids": [1, 2]} {"a": 1}',
        b'{"timestamp": 8, "input_length": 600, "hash_ids": [1, 2',
        b"",
        b"\xff",
        b"[]",
    ]
)


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(LINES, min_size=1, max_size=8), ends=st.booleans())
def test_columns_equal_rows_for_odd_lines_too(tmp_path_factory, lines, ends):
    good = b'{"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}\n' * 3
    path = tmp_path_factory.mktemp("odd") / "odd.jsonl"
    path.write_bytes(good + b"\n".join(lines) + (b"\n" if ends else b""))
    rows, columns = both_ways(path)
    assert len(rows) >= 3
    assert [row[1:] for row in rows] == [row[1:] for row in columns]
    assert [row[0] for row in rows] == [row[0] for row in columns]


def test_columns_only_for_traces(samples):
    assert trace_batches(open_log([str(samples / "text.jsonl")])) is None
    batch = next(trace_batches(open_log([str(samples / "block-hashes-mooncake.jsonl")])))
    assert batch.ids.dtype == np.int64 and len(batch) == 60


def test_deltas_whose_lengths_are_the_whole_prompts(tmp_path, read):
    """Three sessions of four turns in turn; each row has two new blocks and the length of all so far."""
    rows = [
        {
            "session_id": f"s{row % 3}",
            "timestamp": 1000 * row,
            "input_length": 1024 * (row // 3 + 1) - 7,
            "hash_ids": [2 * row, 2 * row + 1],
        }
        for row in range(12)
    ]
    path = tmp_path / "deltas.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    log, requests = read(str(path))
    assert not log.skipped and any("added to the session's earlier ones" in note for note in log.notes)
    assert requests[0].block_ids.block_size == 512
    assert [request.block_ids.tokens for request in requests] == [row["input_length"] for row in rows]
    assert requests[10].block_ids.ids.tolist() == [2, 3, 8, 9, 14, 15, 20, 21]
