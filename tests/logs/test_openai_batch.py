"""openai-batch: input rows are requests, output rows their answers, joined by custom_id."""

import json

import pytest

from kvtool.errors import KvtoolError


def test_input_rows_are_requests(samples, read, said):
    log, requests = read("openai-batch.jsonl")
    rows = [json.loads(line) for line in (samples / "openai-batch.jsonl").read_text().splitlines()]
    assert log.format == "openai-batch"
    assert [request.id for request in requests] == ["r0", "r1", "r2", "r3"]
    for row, request in zip(rows[:3], requests[:3], strict=True):
        assert request.messages == row["body"]["messages"]
        assert request.tools == row["body"]["tools"]
        assert request.source_path("messages[1].content") == "body.messages[1].content"
    assert said(requests[3]) == ["<system>", "Be brief.", "<user>", "Hello"]


def test_an_output_file_gives_answers_in_whatever_order_it_is_named(read):
    for names in (
        ("openai-batch.jsonl", "openai-batch-output.jsonl"),
        ("openai-batch-output.jsonl", "openai-batch.jsonl"),
    ):
        log, requests = read(*names)
        assert [request.output_tokens for request in requests] == [10, 11, 12, None]
        assert requests[0].output["role"] == "assistant"
        assert not log.skipped


def test_an_output_file_alone_says_what_is_missing(read):
    with pytest.raises(KvtoolError, match="no request could be read") as caught:
        read("openai-batch-output.jsonl")
    assert caught.value.hint == "a batch's output has answers only: name its input file too"
