"""swe-agent: the prompt of a step, and honesty about what the file does not show."""

import json


def test_a_steps_messages_end_before_its_answer(samples, read):
    log, requests = read("swe-agent.traj")
    steps = json.loads((samples / "swe-agent.traj").read_text())["trajectory"]
    assert log.format == "swe-agent"
    for number, (step, request) in enumerate(zip(steps, requests, strict=True)):
        assert len(request.messages) == 2 + 2 * number
        assert request.messages == step["messages"][: 2 + 2 * number]
        assert request.output == step["response"]
    assert requests[2].source_path("messages[0].content") == "trajectory[2].messages[0].content"


def test_without_messages_the_history_is_the_prompt(samples, read):
    log, requests = read("swe-agent-text.traj")
    history = json.loads((samples / "swe-agent-text.traj").read_text())["history"]
    assert [len(request.messages) for request in requests] == [2, 4, 6, 8]
    assert requests[3].messages == history[:8]
    assert not log.incomplete_prefix


def test_function_calling_without_recorded_tools_is_incomplete(read):
    _log, requests = read("swe-agent.traj")
    assert {request.incomplete for request in requests} == {"the file records no tools"}


def test_a_query_is_the_exact_prompt(tmp_path, samples, read):
    run = json.loads((samples / "swe-agent-text.traj").read_text())
    run["trajectory"] = [
        {"query": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "response": "r"}
    ]
    path = tmp_path / "query.traj"
    path.write_text(json.dumps(run))
    _, requests = read(str(path))
    assert requests[0].messages == run["trajectory"][0]["query"] and requests[0].output == "r"


def test_what_a_history_processor_elided_is_not_judged(tmp_path, samples, read):
    run = json.loads((samples / "swe-agent-text.traj").read_text())
    run["replay_config"] = {"agent": {"history_processor": {"type": "last_n_observations", "n": 2}}}
    path = tmp_path / "elided.traj"
    path.write_text(json.dumps(run))
    _, requests = read(str(path))
    assert [request.incomplete is None for request in requests] == [True, True, True, False]
