"""litellm: messages at the top, tools in the parameters, times in seconds."""

import json


def test_nothing_is_lost(samples, read):
    log, requests = read("litellm.jsonl")
    rows = [json.loads(line) for line in (samples / "litellm.jsonl").read_text().splitlines()]
    assert log.format == "litellm" and not log.incomplete_prefix
    for row, request in zip(rows, requests, strict=True):
        assert request.messages == row["messages"]
        assert request.tools == row["model_parameters"]["tools"]
        assert request.session == row["trace_id"]
        assert request.arrival == round(row["startTime"] * 1e6)
        assert request.output_tokens == row["completion_tokens"]
        assert request.source_path("tools[1].function.name") == "model_parameters.tools[1].function.name"
        assert request.source_path("messages[0].content") == "messages[0].content"


def test_a_redacted_prompt_is_incomplete(tmp_path, samples, read):
    row = json.loads((samples / "litellm.jsonl").read_text().splitlines()[0])
    row["messages"] = [{"role": "user", "content": "redacted-by-litellm"}]
    path = tmp_path / "redacted.jsonl"
    path.write_text(json.dumps(row) + "\n")
    log, requests = read(str(path))
    assert requests[0].incomplete == "LiteLLM redacted the messages" and log.incomplete_prefix
