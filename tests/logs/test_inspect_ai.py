"""inspect-ai: model events of whole logs and of zipped samples, attachments and pools put back."""

import json
import zipfile


def test_a_whole_log_has_its_attachments_back(samples, read):
    log, requests = read("inspect-ai-log.json")
    sample = json.loads((samples / "inspect-ai-log.json").read_text())["samples"][0]
    events = [event for event in sample["events"] if event["event"] == "model"]
    assert log.format == "inspect-ai"
    for event, request in zip(events, requests, strict=True):
        expected = []
        for message in event["input"]:
            key = message["content"].removeprefix("attachment://")
            expected.append((message["role"], sample["attachments"].get(key, message["content"])))
        assert [(message["role"], message["content"]) for message in request.messages] == expected
        assert "attachment://" not in json.dumps(request.messages)
    assert requests[0].source_path("messages[0].content").startswith("samples[0].attachments.")
    assert requests[0].output_tokens == events[0]["output"]["usage"]["output_tokens"]


def test_the_samples_of_an_eval_file(read):
    _log, requests = read("inspect-ai-formats.eval")
    assert [request.source.file.rsplit(".eval/")[1] for request in requests] == ["samples/1_epoch_1.json"]
    assert requests[0].messages[0]["content"].startswith("\nPlease note: In the following EXERCISE")


def test_messages_are_taken_from_the_pool(samples, read):
    _, requests = read("inspect-ai-message-deduplication.eval")
    with zipfile.ZipFile(samples / "inspect-ai-message-deduplication.eval") as archive:
        sample = json.loads(archive.read("samples/0_epoch_1.json"))
    events = [event for event in sample["events"] if event["event"] == "model"]
    assert len(requests) == 6
    for event, request in zip(events, requests, strict=True):
        pool = [sample["message_pool"][at] for low, high in event["input_refs"] for at in range(low, high)]
        assert [message["role"] for message in request.messages] == [message["role"] for message in pool]
        assert [len(message.get("tool_calls") or []) for message in request.messages] == [
            len(message.get("tool_calls") or []) for message in pool
        ]
    tool = requests[0].tools[1]["function"]
    assert tool["name"] == "python" and tool["description"].startswith("Use the python function")
    assert requests[0].session == "0-1"
