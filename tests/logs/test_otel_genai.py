"""otel-genai: four dialects of one telemetry say the same; what was dropped is not judged."""

import json
from pathlib import Path

import pytest


def rows_of(samples: Path, name: str):
    return [json.loads(line) for line in (samples / name).read_text().splitlines()]


def records(rows):
    for row in rows:
        for resources, scopes, kind in (
            ("resourceSpans", "scopeSpans", "spans"),
            ("resourceLogs", "scopeLogs", "logRecords"),
        ):
            for resource in row.get(resources, []):
                for scope in resource[scopes]:
                    yield from ((kind, record) for record in scope[kind])


def attribute(record, key):
    found = [one["value"] for one in record["attributes"] if one["key"] == key]
    return found[0]["stringValue"] if found and "stringValue" in found[0] else None


def said_in_parts(messages, canonical):
    out = []
    for message in messages:
        parts = message["parts"]
        out.append("<tool>" if parts[0]["type"] == "tool_call_response" else f"<{message['role']}>")
        for part in parts:
            if part["type"] == "text":
                out.append(part["content"])
            elif part["type"] == "tool_call":
                out += [f"call: {part['name']}", canonical(part["arguments"])]
            else:
                out.append(part.get("response", part.get("result")))
    return out


@pytest.mark.parametrize("name", ["otel-genai-genai-latest.jsonl", "otel-genai-traceloop.jsonl"])
def test_messages_in_one_attribute(name, samples, read, said, plain):
    log, requests = read(name)
    by_span = {}
    for _, record in records(rows_of(samples, name)):
        messages = attribute(record, "gen_ai.input.messages")
        if messages:
            tools = json.loads(attribute(record, "gen_ai.tool.definitions") or "[]")
            told = [plain({key: tool[key] for key in tool if key != "type"}) for tool in tools]
            by_span[record["spanId"]] = told + said_in_parts(json.loads(messages), plain)
    assert log.format == "otel-genai" and len(by_span) == 4
    assert {request.id: said(request) for request in requests} == by_span
    assert log.incomplete_prefix == (name == "otel-genai-genai-latest.jsonl")  # it records no tools


def test_a_span_and_its_log_record_are_one_request(samples, read):
    _, requests = read("otel-genai-genai-latest.jsonl")
    kinds = [kind for kind, _ in records(rows_of(samples, "otel-genai-genai-latest.jsonl"))]
    assert kinds.count("spans") == 4 and kinds.count("logRecords") == 4
    assert len(requests) == len({request.id for request in requests}) == 4


def test_events_are_joined_by_span(samples, read):
    _, requests = read("otel-genai-genai-legacy-events.jsonl")
    expected: dict[str, list] = {}
    for kind, record in records(rows_of(samples, "otel-genai-genai-legacy-events.jsonl")):
        if kind == "logRecords" and record["eventName"] != "gen_ai.choice":
            fields = {one["key"]: one["value"] for one in record["body"]["kvlistValue"]["values"]}
            role = record["eventName"].split(".")[1]
            expected.setdefault(record["spanId"], []).append((role, fields["content"]["stringValue"]))
    found = {r.id: [(message["role"], message["content"]) for message in r.messages] for r in requests}
    assert found == expected
    assert requests[0].output["role"] == "assistant" and requests[0].model == "gpt-4o"


def test_flattened_attributes_equal_the_body_beside_them(samples, read):
    _, requests = read("otel-genai-openinference.jsonl")
    bodies = {
        record["spanId"]: json.loads(attribute(record, "input.value"))
        for _, record in records(rows_of(samples, "otel-genai-openinference.jsonl"))
        if attribute(record, "input.value")
    }
    for request in requests:
        body = bodies[request.id]
        assert request.tools == body["tools"]
        assert [message["content"] or "" for message in request.messages] == [
            message["content"] or "" for message in body["messages"]
        ]
        calls = [call["function"] for message in request.messages for call in message.get("tool_calls", [])]
        assert calls == [
            call["function"] for message in body["messages"] for call in message.get("tool_calls") or []
        ]


def drop(samples, tmp_path, keys):
    row = rows_of(samples, "otel-genai-openinference.jsonl")[0]
    span = row["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    kept = [one for one in span["attributes"] if not one["key"].startswith(keys)]
    span["droppedAttributesCount"] = len(span["attributes"]) - len(kept)
    span["attributes"] = kept
    path = tmp_path / "dropped.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return str(path)


def test_dropped_attributes_are_made_good_by_the_whole_body(samples, tmp_path, read):
    _, whole = read("otel-genai-openinference.jsonl")
    _, requests = read(drop(samples, tmp_path, ("llm.tools.0", "llm.input_messages.0")))
    assert requests[0].messages == whole[0].messages
    assert requests[0].tools == whole[0].tools
    assert requests[0].incomplete is None


def test_dropped_attributes_without_it_make_the_request_incomplete(samples, tmp_path, read):
    log, requests = read(drop(samples, tmp_path, ("llm.tools.0", "llm.input_messages.0", "input.value")))
    assert requests[0].incomplete == "attributes were dropped at the SDK's limit"
    assert log.incomplete_prefix


def test_messages_cut_at_the_length_limit_are_shown_not_judged(samples, tmp_path, read):
    row = rows_of(samples, "otel-genai-traceloop.jsonl")[0]
    for one in row["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"]:
        if one["key"] == "gen_ai.input.messages":
            one["value"]["stringValue"] = one["value"]["stringValue"][:100]
    path = tmp_path / "cut.jsonl"
    path.write_text(json.dumps(row) + "\n")
    _, requests = read(str(path))
    assert requests[0].incomplete == "the recorded messages are cut off"
    assert requests[0].text.startswith('[{"role": "system"') and requests[0].messages is None


def test_a_call_without_recorded_content_is_counted(samples, tmp_path, read):
    rows = rows_of(samples, "otel-genai-genai-legacy-events.jsonl")
    spans = [row for row in rows if "resourceSpans" in row]
    events = [row for row in rows if "resourceSpans" not in row][:3]
    path = tmp_path / "half.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*events, *spans]))
    log, requests = read(str(path))
    assert len(requests) == 1
    assert [(one.reason, one.rows) for one in log.skipped] == [
        ("a model call without recorded messages (content capture off?)", len(spans) - 1)
    ]
