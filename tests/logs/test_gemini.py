"""gemini: contents, parts and function declarations come through."""

import json


def test_nothing_is_lost(samples, read, said, plain):
    log, requests = read("gemini.jsonl")
    rows = [json.loads(line) for line in (samples / "gemini.jsonl").read_text().splitlines()]
    assert log.format == "gemini"
    roles = {"model": "assistant"}
    for row, request in zip(rows, requests, strict=True):
        body, expected = row["request"], []
        tools = body["tools"] if isinstance(body["tools"], list) else [body["tools"]]
        for tool in tools:
            for key, value in tool.items():
                expected += (
                    [plain(one) for one in value]
                    if key == "function_declarations"
                    else [plain({"type": key, key: value})]
                )
        for content in body["contents"]:
            for part in content["parts"]:
                role = "tool" if "functionResponse" in part else roles.get(content["role"], content["role"])
                expected.append(f"<{role}>")
                if "text" in part:
                    expected.append(part["text"])
                if "functionCall" in part:
                    call = part["functionCall"]
                    expected += [f"call: {call['name']}", plain(call["args"])]
                if "functionResponse" in part:
                    expected.append(json.dumps(part["functionResponse"]["response"]))
        assert said(request) == expected


def test_paths_and_answers(read):
    _, requests = read("gemini.jsonl")
    last = requests[-1]
    assert last.source_path("messages[0].content[0].text") == "request.contents[0].parts[0].text"
    assert last.source_path("messages[1].tool_calls[0].function.arguments") == (
        "request.contents[1].parts[0].functionCall.args"
    )
    assert last.source_path("tools[0].function.name") == "request.tools.function_declarations[0].name"
    assert last.output["content"][0]["text"].startswith("The capital of France is Paris")
