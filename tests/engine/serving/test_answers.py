"""OpenAI's objects from deltas: tool calls, roles, usage, as its client library reads them."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from kvtool.engine.compute.logprobs import TokenLogprob
from kvtool.engine.serving.answers import ChatAnswer, TextAnswer, usage_object
from kvtool.engine.serving.generation import Delta, Usage

CALL = 'I look.\n<tool_call>\n{"name": "find", "arguments": {"q": 1}}\n</tool_call>'


def spelled(token: int) -> bytes:
    return bytes([97 + token])


def deltas(text: str, cuts: list[int]) -> list[Delta]:
    """`text` in pieces, then the end."""
    borders = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [Delta(text[a:b]) for a, b in pairwise(borders)]
    return [*pieces, Delta("", "stop", Usage(5, 4, 3))]


def streamed(answer: ChatAnswer, text: str, cuts: list[int]) -> tuple[str, list[Any], str | None]:
    """(content, tool calls, finish) as a client adds them up."""
    content, calls, finish = "", [], None
    for number, delta in enumerate(deltas(text, cuts)):
        for raw in answer.chunks(0, delta):
            chunk = ChatCompletionChunk.model_validate(raw)
            choice = chunk.choices[0]
            if number == 0:
                assert choice.delta.role == "assistant"
            content += choice.delta.content or ""
            calls += choice.delta.tool_calls or []
            finish = choice.finish_reason or finish
    return content, calls, finish


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 200), max_size=8))
def test_a_streamed_tool_call_is_never_seen_as_text(cuts: list[int]) -> None:
    content, calls, finish = streamed(ChatAnswer("chatcmpl-1", 1, "m", 1, True, spelled), CALL, cuts)
    assert content.strip() == "I look." and finish == "tool_calls"
    assert [(call.index, call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        (0, "find", {"q": 1})
    ]


@settings(max_examples=100, deadline=None)
@given(st.text("<tol_cal>{} x\n", max_size=40), st.lists(st.integers(0, 200), max_size=8))
def test_text_that_only_looks_like_a_call_arrives_whole(text: str, cuts: list[int]) -> None:
    content, calls, finish = streamed(ChatAnswer("chatcmpl-1", 1, "m", 1, True, spelled), text, cuts)
    assert (content, calls, finish) == (text, [], "stop")


def test_without_tools_a_call_is_text() -> None:
    content, calls, finish = streamed(ChatAnswer("chatcmpl-1", 1, "m", 1, False, spelled), CALL, [])
    assert (content, calls, finish) == (CALL, [], "stop")


def test_a_whole_answer_with_a_call_reads_as_openai_reads_it() -> None:
    answer = ChatAnswer("chatcmpl-1", 1, "m", 1, True, spelled)
    for delta in deltas(CALL, [9, 20]):
        answer.choices[0].add(delta)
    parsed = ChatCompletion.model_validate(answer.whole(usage_object([Usage(5, 4, 3)], 1)))
    choice = parsed.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content == "I look."
    assert choice.message.tool_calls is not None and choice.message.tool_calls[0].id.startswith("call_")
    assert parsed.usage is not None and parsed.usage.total_tokens == 8


def test_usage_counts_a_prompt_once_however_many_choices() -> None:
    usages = [Usage(10, 8, 3), Usage(10, 9, 4), Usage(20, 0, 1), Usage(20, 16, 2)]
    assert usage_object(usages, 2) == {
        "prompt_tokens": 30,
        "completion_tokens": 10,
        "total_tokens": 40,
        "prompt_tokens_details": {"cached_tokens": 8},
    }


def test_tokens_that_are_parts_of_a_character_are_told_apart() -> None:
    """Each of them alone decodes to a replacement character; joined, the bytes are the text."""
    euro = list("€".encode())
    odds = [TokenLogprob(byte, -0.5, ((0x82, -0.25), (0x83, -1.0))) for byte in (0x41, *euro, 0x42)]
    delta = Delta("A€B", "length", Usage(1, 0, 5), tuple(odds))
    text = TextAnswer("cmpl-1", 1, "m", 1, lambda token: bytes([token]))
    found = text.chunks(0, delta)[0]["choices"][0]["logprobs"]
    assert found["tokens"] == ["A", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "B"]
    assert found["top_logprobs"][0] == {"bytes:\\x82": -0.25, "bytes:\\x83": -1.0, "A": -0.5}
    assert found["text_offset"] == [0, 1, 1, 1, 2]
    chat = ChatAnswer("chatcmpl-1", 1, "m", 1, False, lambda token: bytes([token]))
    entries = chat.chunks(0, delta)[0]["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "A€B"


def test_text_logprobs_stand_at_their_characters() -> None:
    answer = TextAnswer("cmpl-1", 1, "m", 1, spelled)
    odds = TokenLogprob(2, -0.5, ((2, -0.5), (1, -1.5)))
    first = answer.chunks(0, Delta("c", logprobs=(odds,)))[0]
    second = answer.chunks(0, Delta("c", "length", Usage(1, 0, 2), (odds,)))[0]
    assert first["choices"][0]["logprobs"] == {
        "tokens": ["c"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"c": -0.5, "b": -1.5}],
        "text_offset": [0],
    }
    assert second["choices"][0]["logprobs"]["text_offset"] == [1]
    whole = Completion.model_validate(answer.whole(usage_object([Usage(1, 0, 2)], 1)))
    assert whole.choices[0].text == "cc" and whole.choices[0].finish_reason == "length"
