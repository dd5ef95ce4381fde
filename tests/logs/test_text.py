"""text: prompts as they are, times in any unit."""

import json


def test_prompts_times_and_sessions(samples, read):
    log, requests = read("text.jsonl")
    assert log.format == "text"
    assert [request.text for request in requests] == [
        "Say hi.",
        "Say hi. And then?",
        "Sagen Sie «Grüß Gott».",
    ]
    assert [request.arrival for request in requests] == [
        1_700_000_000_000_000 + k * 1_000_000 for k in range(3)
    ]
    assert requests[0].output == "ok" and requests[0].model == "m"
    assert requests[0].source_path("text") == "prompt"


def test_lmcache_traces_have_microseconds(samples, read):
    _, requests = read("text-lmcache.jsonl")
    rows = [json.loads(line) for line in (samples / "text-lmcache.jsonl").read_text().splitlines()]
    assert [(r.text, r.arrival, r.session) for r in requests] == [
        (row["input"], row["timestamp"], row["session_id"]) for row in rows
    ]


def test_a_completions_body_in_an_envelope(tmp_path, read):
    path = tmp_path / "completions.jsonl"
    path.write_text(
        json.dumps({"request": {"prompt": "Once", "model": "m"}, "timestamp": "2025-01-01T00:00:00Z"}) + "\n"
    )
    _log, requests = read(str(path))
    assert (requests[0].text, requests[0].model) == ("Once", "m")
    assert requests[0].source_path("text") == "request.prompt"


def test_a_completions_body_with_several_prompts_is_as_many_requests(tmp_path, read):
    path = tmp_path / "several.jsonl"
    body = {"model": "m", "prompt": ["Once", "", "Twice"]}
    path.write_text(
        json.dumps({"request": body}) + "\n" + json.dumps({"request": {"prompt": [1, "x"]}}) + "\n"
    )
    log, requests = read(str(path))
    assert [request.text for request in requests] == ["Once", "", "Twice"]
    assert [request.source_path("text") for request in requests][2] == "request.prompt[2]"
    assert [(one.reason, one.rows) for one in log.skipped] == [("prompt is not text", 1)]
