"""langfuse: generations of several frameworks, their inputs being JSON in strings."""

import json


def generations(samples, name):
    observations = json.loads((samples / name).read_text())["observations"]
    return [one for one in observations if one["type"] == "GENERATION"]


def test_text_inputs_stay_text(samples, read):
    log, requests = read("langfuse-autogen.json")
    assert log.format == "langfuse"
    assert [r.text for r in requests] == [
        one["input"] for one in generations(samples, "langfuse-autogen.json")
    ]
    assert requests[0].session == "session_abc"
    assert requests[0].output_tokens == 3


def test_tool_definitions_among_langchains_messages_are_tools(samples, read, said):
    _log, requests = read("langfuse-langgraph-python.json")
    for one, request in zip(generations(samples, "langfuse-langgraph-python.json"), requests, strict=True):
        source = json.loads(one["input"])
        tools = [message["content"] for message in source if isinstance(message["content"], dict)]
        said_there = [message["content"] for message in source if isinstance(message["content"], str)]
        assert request.tools == tools and len(tools) == 1
        assert [message["content"] for message in request.messages] == said_there
    assert requests[1].messages[2]["tool_calls"][0]["function"]["name"] == "Web-Search"
    assert (
        requests[1]
        .source_path("messages[2].tool_calls[0].function.arguments")
        .endswith("[2].additional_kwargs.tool_calls[0].function.arguments")
    )
    assert requests[1].source_path("messages[1].content") == "observations[1].input:json[1].content"


def test_geminis_bodies_are_read_as_such(samples, read, said):
    _, requests = read("langfuse-google-adk.json")
    assert said(requests[1])[0] == '{"name": "say_hello"}'
    assert [message["role"] for message in requests[0].messages] == ["system", "user", "assistant", "tool"]
    assert requests[0].messages[0]["content"].startswith("Always greet using the say_hello tool.")
    assert json.loads(requests[0].messages[3]["content"]) == {"greeting": "Hello Langfuse 👋"}
    assert requests[0].arrival > requests[1].arrival
