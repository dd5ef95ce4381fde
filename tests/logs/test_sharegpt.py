"""sharegpt: turns of the model are requests; calls, results and tools come through."""

import json


def test_nothing_is_lost(samples, read, said, plain):
    log, requests = read("sharegpt.json")
    assert log.format == "sharegpt"
    roles = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}
    expected = []
    for row in json.loads((samples / "sharegpt.json").read_text()):
        told = [plain(tool) for tool in json.loads(row["tools"])]
        for index, turn in enumerate(row["conversations"]):
            if roles[turn["from"]] == "assistant" and index:
                expected.append(list(told))
            told.append(f"<{roles[turn['from']]}>")
            if turn["from"] == "function_call":
                call = json.loads(turn["value"])
                told += [f"call: {call['name']}", plain(call["arguments"])]
            else:
                told.append(turn["value"])
    assert [said(request) for request in requests] == expected and len(expected) == 19


def test_paths_lead_into_the_json_strings(read):
    _, requests = read("sharegpt.json")
    request = next(one for one in requests if any("tool_calls" in message for message in one.messages))
    at = next(index for index, message in enumerate(request.messages) if "tool_calls" in message)
    assert request.source_path("tools[0].function.name") == "tools:json[0].name"
    assert request.source_path(f"messages[{at}].tool_calls[0].function.arguments") == (
        f"conversations[{at}].value:json.arguments"
    )


def test_a_system_text_comes_first(tmp_path, read):
    row = {
        "system": "Be kind.",
        "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}],
    }
    path = tmp_path / "one.json"
    path.write_text(json.dumps([row]))
    _, requests = read(str(path))
    assert [message["content"] for message in requests[0].messages] == ["Be kind.", "Hi"]
    assert requests[0].source_path("messages[0].content") == "system"
    assert requests[0].source_path("messages[1].content") == "conversations[0].value"
