"""claude-code: conversations put together from session files, without the head nobody recorded."""

import json


def test_a_session_with_parents(samples, read, said):
    log, requests = read("claude-code.jsonl")
    rows = [json.loads(line) for line in (samples / "claude-code.jsonl").read_text().splitlines()]
    turns = [row for row in rows if row["type"] in ("user", "assistant")]
    answers = [index for index, row in enumerate(turns) if row["type"] == "assistant"]
    assert log.format == "claude-code" and len(requests) == len(answers) == 6
    assert [request.id for request in requests] == [turns[index]["message"]["id"] for index in answers]
    texts = []
    for row in turns[: answers[-1]]:
        content = row["message"]["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            texts.append(block.get("text") or block.get("content") or f"call: {block['name']}")
    told = [text for text in said(requests[-1]) if not text.startswith(("<", "{"))]
    assert told == texts


def test_the_missing_head_is_said(read):
    log, requests = read("claude-code.jsonl")
    assert log.incomplete_prefix
    assert {request.incomplete for request in requests} == {"the log records no system prompt and no tools"}


def test_bad_rows_are_counted_with_their_first_place(samples, read):
    log, requests = read("claude-code-edge-cases.jsonl")
    path = samples / "claude-code-edge-cases.jsonl"
    assert len(requests) == 3
    assert {(one.reason, one.rows, one.first) for one in log.skipped} == {
        ("the row is not an object", 3, f"{path}:13"),
        ("message.content is neither text nor blocks", 1, f"{path}:10"),
        ("message is not an object", 1, f"{path}:11"),
        ("type is missing", 1, f"{path}:14"),
        ("an answer without anything before it", 1, f"{path}:17"),  # of another session
    }


def test_an_answer_streamed_into_several_rows_is_one_request(tmp_path, read, said):
    def row(kind, uuid, parent, content, **message):
        return {
            "type": kind,
            "sessionId": "s",
            "uuid": uuid,
            "parentUuid": parent,
            "message": {"role": kind, "content": content, **message},
        }

    rows = [
        row("user", "u1", None, "Look."),
        row("assistant", "a1", "u1", [{"type": "thinking", "thinking": "Hm."}], id="m1"),
        row("assistant", "a2", "a1", [{"type": "text", "text": "Looking."}], id="m1"),
        row("user", "u2", "a2", "Well?"),
        row("assistant", "a3", "u2", [{"type": "text", "text": "Done."}], id="m2"),
        row("user", "u3", "u1", "Another branch."),
        row("assistant", "a4", "u3", [{"type": "text", "text": "Yes."}], id="m3"),
    ]
    path = tmp_path / "streamed.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    _, requests = read(str(path))
    assert [request.id for request in requests] == ["m1", "m2", "m3"]
    assert said(requests[1]) == [
        "<user>",
        "Look.",
        "<assistant>",
        "Looking.",
        "think: Hm.",
        "<user>",
        "Well?",
    ]
    assert said(requests[2]) == ["<user>", "Look.", "<user>", "Another branch."]


def test_loglines_in_one_object(samples, read):
    lines = json.loads((samples / "claude-code-loglines.json").read_text())["loglines"]
    _, requests = read("claude-code-loglines.json")
    assert len(requests) == sum(line["type"] == "assistant" for line in lines) == 5
