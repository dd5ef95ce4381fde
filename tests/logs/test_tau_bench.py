"""tau-bench: one request for each answer in a trajectory; the transcripts are incomplete."""

import json


def test_each_answers_prompt_is_what_stands_before_it(samples, read):
    log, requests = read("tau-bench.json")
    expected = []
    for run in json.loads((samples / "tau-bench.json").read_text()):
        for index, message in enumerate(run["traj"]):
            if message["role"] == "assistant":
                expected.append((f"{run['task_id']}-{run['trial']}", run["traj"][:index], message))
    assert log.format == "tau-bench"
    assert [(request.session, request.messages, request.output) for request in requests] == expected
    assert requests[0].source_path("messages[0].content") == "traj[0].content"


def test_the_missing_tools_are_said(read):
    log, _ = read("tau-bench.json")
    assert log.incomplete_prefix
    assert "tau-bench log without tools: the head of a prompt is not whole" in log.notes
    assert "no times in the log: requests are taken in file order" in log.notes


def test_a_transcript_gives_incomplete_text(samples, read):
    _, requests = read("tau-bench-few-shot.jsonl")
    rows = [
        json.loads(line)["messages_display"]
        for line in (samples / "tau-bench-few-shot.jsonl").read_text().splitlines()
    ]
    assert len(requests) == sum(row.count("\nassistant: ") for row in rows)
    assert rows[0].startswith(requests[0].text + "assistant: ")
    assert all(request.incomplete for request in requests)
