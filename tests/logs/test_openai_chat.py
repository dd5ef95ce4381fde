"""openai-chat: nothing of a body is lost, in whatever envelope it came."""

import json

from kvtool.logs.formats.openai_chat import OpenAIChat
from kvtool.requests import Source

EXPECTED_ARRIVALS = [
    1_740_823_200_000_000,
    1_740_823_210_000_000,
    1_740_823_220_500_000,
    1_740_823_230_250_000,
    None,
]


def said_by(body, canonical):
    out = [canonical(tool["function"]) for tool in body.get("tools", [])]
    out += [canonical(function) for function in body.get("functions", [])]
    for message in body["messages"]:
        out.append(f"<{message['role']}>")
        if isinstance(message.get("content"), str) and message["content"]:
            out.append(message["content"])
        for part in message["content"] if isinstance(message.get("content"), list) else []:
            out.append(part["text"] if "text" in part else canonical(part))
        if message.get("refusal"):
            out.append(message["refusal"])
        if message.get("reasoning"):
            out.append("think: " + message["reasoning"])
        for call in message.get("tool_calls") or []:
            out += [f"call: {call['function']['name']}", canonical(call["function"]["arguments"])]
    return out


def test_every_shape_of_row_says_what_its_body_says(samples, read, said, plain):
    log, requests = read("openai-chat.jsonl")
    rows = [json.loads(line) for line in (samples / "openai-chat.jsonl").read_text().splitlines()]
    bodies = [rows[0], rows[1]["request"], json.loads(rows[2]["body"]), rows[3], {"messages": rows[4]}]
    assert log.format == "openai-chat" and not log.skipped and not log.incomplete_prefix
    assert [said(request) for request in requests] == [said_by(body, plain) for body in bodies]


def test_times_sessions_models_and_answers_are_found(read):
    _, requests = read("openai-chat.jsonl")
    assert [request.arrival for request in requests] == EXPECTED_ARRIVALS
    assert [request.session for request in requests] == ["s1", "s1", "s1", "s2", None]
    assert [request.model for request in requests] == ["gpt-4o"] * 4 + [None]
    assert requests[1].output_tokens == 17
    assert requests[1].output["role"] == "assistant"


def test_paths_lead_to_the_field_in_the_row(read):
    _, requests = read("openai-chat.jsonl")
    assert requests[0].source_path("messages[0].content") == "messages[0].content"
    assert requests[1].source_path("messages[0].content") == "request.messages[0].content"
    assert requests[2].source_path("messages[3].content") == "body:json.messages[3].content"
    assert requests[2].source_path("tools[1]") == "body:json.tools[1]"
    assert requests[3].source_path("tools[0].function.name") == "functions[0].name"
    assert requests[3].source_path("messages[2].content") == "messages[2].refusal"
    assert requests[4].source_path("messages[0].content") == "[0].content"


def test_cache_control_does_not_reach_the_model(read):
    _, requests = read("openai-chat.jsonl")
    assert requests[3].messages[0]["content"] == [{"type": "text", "text": "Answer briefly."}]


def test_a_gateways_log_may_hold_several_apis(tmp_path, read):
    rows = [
        {"path": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "a"}]}},
        {"path": "/v1/messages", "body": {"system": "s", "messages": [{"role": "user", "content": "b"}]}},
        {"path": "/v1/responses", "body": {"instructions": "i", "input": "c"}},
        {"path": "/v1/models", "body": {}},
    ]
    path = tmp_path / "gateway.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    log, requests = read(str(path))
    texts = [[message["content"] for message in request.messages] for request in requests]
    assert texts == [["a"], ["s", "b"], ["i", "c"]]
    assert [(one.rows, one.first) for one in log.skipped] == [(1, f"{path}:4")]


def test_ids_of_an_answer_are_kept_where_the_log_has_them():
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    choice = {"message": {"role": "assistant", "content": "Yes"}}

    def ids(response):
        (request,) = OpenAIChat().read({"request": body, "response": response}, Source("log", 1))
        return request.output_ids

    assert ids({"choices": [{**choice, "token_ids": [7, 8]}]}) == (7, 8)
    assert ids({"text": "Yes", "output_ids": [7, 8]}) == (7, 8)
    for wrong in ([], [7, -1], [7, "8"], [True], "7 8", None):
        assert ids({"choices": [{**choice, "token_ids": wrong}]}) is None
