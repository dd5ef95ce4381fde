"""openai-responses: items become messages; stored turns are joined where the log has them."""

import json


def said_by(body, canonical):
    """Items in order; the calls and reasoning of one turn are told behind its text."""
    out = []
    for tool in body.get("tools", []):
        plain = {key: value for key, value in tool.items() if key != "type"}
        out.append(canonical(plain if "name" in tool else tool))
    if body.get("instructions"):
        out += ["<system>", body["instructions"]]
    items = body["input"]
    if isinstance(items, str):
        return [*out, "<user>", items]
    turn = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "function_call_output" or item.get("role") not in (None, "assistant"):
            out += turn
            turn = []
        if kind == "message":
            content = item["content"]
            texts = [content] if isinstance(content, str) else [part["text"] for part in content]
            if item["role"] == "assistant":
                turn = turn or ["<assistant>"]
                turn[1:1] = [text for text in texts if text]
            else:
                out += [f"<{item['role']}>", *texts]
        elif kind == "function_call":
            turn = turn or ["<assistant>"]
            turn += [f"call: {item['name']}", canonical(item["arguments"])]
        elif kind == "function_call_output":
            out += ["<tool>", item["output"]]
        elif kind == "reasoning":
            hidden = {"type": "encrypted_reasoning", "data": item["encrypted_content"]}
            turn = [*(turn or ["<assistant>"]), canonical(hidden)]
    return out + turn


def rows_of(samples):
    return [json.loads(line) for line in (samples / "openai-responses.jsonl").read_text().splitlines()]


def test_nothing_is_lost(samples, read, said, plain):
    log, requests = read("openai-responses.jsonl")
    rows = rows_of(samples)
    assert log.format == "openai-responses" and not log.skipped
    assert [said(request) for request in requests[:7]] == [said_by(row["request"], plain) for row in rows[:7]]


def test_a_stored_response_in_the_log_gives_back_its_turns(read, said):
    _log, requests = read("openai-responses.jsonl")
    assert said(requests[7]) == [
        "<system>",
        "Be brief.",
        "<user>",
        "Hello",
        "<assistant>",
        "Hi.",
        "<user>",
        "And?",
    ]
    assert requests[7].incomplete is None
    assert requests[7].source_path("messages[3].content[0].text") == "request.input[0].content[0].text"
    assert requests[7].source_path("messages[0].content") == "request.instructions"


def test_a_stored_response_elsewhere_makes_the_request_incomplete(read):
    log, requests = read("openai-responses.jsonl")
    assert requests[8].incomplete == "earlier turns are kept by the provider (previous_response_id)"
    assert log.incomplete_prefix


def test_ids_of_items_do_not_reach_the_prompt(read):
    _, requests = read("openai-responses.jsonl")
    told = json.dumps([request.messages for request in requests])
    assert "msg_0fabc13af1ee0049" not in told and "rs_0fabc" not in told
