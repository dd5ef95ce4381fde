"""token-ids: ids as they are, up to 32 bits."""

import json

import numpy as np


def test_ids_sessions_and_times(samples, read):
    log, requests = read("token-ids.jsonl")
    rows = [json.loads(line) for line in (samples / "token-ids.jsonl").read_text().splitlines()]
    assert log.format == "token-ids"
    for row, request in zip(rows, requests, strict=True):
        assert request.token_ids.dtype == np.uint32
        assert request.token_ids.tolist() == row["prompt_token_ids"]
        assert (request.session, request.arrival) == (row["session"], round(row["time"] * 1e6))
    assert requests[0].source_path("token_ids") == "prompt_token_ids"


def test_what_is_no_token_id_is_a_bad_row(tmp_path, read):
    path = tmp_path / "ids.jsonl"
    path.write_text(
        '{"token_ids": [1, 2]}\n{"token_ids": [1, -2]}\n{"token_ids": [1, 4294967296]}\n{"token_ids": "x"}\n'
    )
    log, requests = read(str(path))
    assert len(requests) == 1
    assert [one.rows for one in log.skipped] == [2, 1]
    assert log.skipped[0].reason == "token_ids holds something that is no token id"
    assert log.skipped[1].reason.startswith("no list of integers under any of token_ids, ")


def test_a_completions_body_with_several_prompts_of_ids(tmp_path, read):
    path = tmp_path / "ids.jsonl"
    rows = [[[1, 2, 3], [4]], [5, 6], [[7], ["x"]], [[8], 9]]
    path.write_text("".join(json.dumps({"model": "m", "prompt": row}) + "\n" for row in rows))
    log, requests = read(str(path))
    assert [request.token_ids.tolist() for request in requests] == [[1, 2, 3], [4], [5, 6]]
    assert requests[1].source_path("token_ids") == "prompt[1]"
    assert [one.rows for one in log.skipped] == [2]
