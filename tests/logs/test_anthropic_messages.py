"""anthropic-messages: system, blocks, tools and tool results come through in OpenAI's shape."""

import json


def said_by(body, canonical):
    out = []
    for tool in body.get("tools", []):
        if "input_schema" in tool:
            tool = {("parameters" if key == "input_schema" else key): tool[key] for key in tool}
            tool.pop("type", None)
        tool.pop("cache_control", None)
        out.append(canonical(tool))
    if body.get("system"):
        out.append("<system>")
        system = body["system"]
        out += [system] if isinstance(system, str) else [block["text"] for block in system]
    for message in body["messages"]:
        if isinstance(message["content"], str):
            out += [f"<{message['role']}>", message["content"]]
            continue
        results = [block for block in message["content"] if block["type"] == "tool_result"]
        others = [block for block in message["content"] if block["type"] != "tool_result"]
        for block in results:
            out.append("<tool>")
            content = block["content"]
            for part in [{"text": content}] if isinstance(content, str) else content:
                out.append(part["text"] if "text" in part else canonical(part))
        if others:
            out.append(f"<{message['role']}>")
        for block in others:
            if block["type"] == "text":
                out.append(block["text"])
            elif block["type"] not in ("thinking", "tool_use"):
                out.append(canonical(block))
        out += ["think: " + block["thinking"] for block in others if block["type"] == "thinking"]
        for block in others:
            if block["type"] == "tool_use":
                out += [f"call: {block['name']}", canonical(block["input"])]
    return out


def test_nothing_is_lost(samples, read, said, plain):
    log, requests = read("anthropic-messages.jsonl")
    rows = [json.loads(line) for line in (samples / "anthropic-messages.jsonl").read_text().splitlines()]
    assert log.format == "anthropic-messages" and not log.skipped
    assert [said(request) for request in requests] == [said_by(row["request"], plain) for row in rows]


def test_tool_results_stand_before_the_users_words_and_lead_back(read):
    _, requests = read("anthropic-messages.jsonl")
    last = requests[-1]
    assert [message["role"] for message in last.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
    ]
    assert last.messages[3]["tool_call_id"] == "t1" and last.messages[4]["is_error"] is True
    assert last.source_path("messages[0].content[1].text") == "request.system[1].text"
    assert last.source_path("messages[2].tool_calls[1].function.arguments") == (
        "request.messages[1].content[3].input"
    )
    assert last.source_path("messages[4].content") == "request.messages[2].content[1].content"
    assert last.source_path("messages[5].content[0].text") == "request.messages[2].content[2].text"
    assert last.source_path("tools[0].function.parameters") == "request.tools[0].input_schema"
    assert last.session == "one"


def test_a_digest_of_an_image_does_not_see_cache_control(read):
    _, requests = read("anthropic-messages.jsonl")
    assert all("cache_control" not in json.dumps(request.messages) for request in requests)
    assert all("cache_control" not in json.dumps(request.tools) for request in requests)


def test_thinking_of_earlier_turns_is_reasoning(read):
    _, requests = read("anthropic-messages.jsonl")
    thought = [
        message["reasoning_content"]
        for r in requests
        for message in r.messages
        if "reasoning_content" in message
    ]
    assert len(thought) == 1 and thought[0].startswith("This is a straightforward question")
