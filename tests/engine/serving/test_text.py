"""Streamed text is the text of all tokens, cut before the first stop string and nowhere else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.engine.serving.text import Detokenizer, StopFilter
from kvtool.engine.serving.tool_calls import ToolCall, parse_tool_calls
from kvtool.tokens import Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer("embedded")


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=60) | st.text("日本é€🎉👩‍👩‍👧 a\n", max_size=60))
def test_pieces_join_to_the_text_and_are_whole_characters(tokenizer: Tokenizer, text: str) -> None:
    ids = [int(token) for token in tokenizer.encode(text)]
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(token) for token in ids]
    if "\ufffd" not in tokenizer.decode(ids):  # the vocabulary has no token for some rare bytes
        assert not any("\ufffd" in piece for piece in pieces), "half a character was let out"
    assert "".join([*pieces, detokenizer.finish()]) == tokenizer.decode(ids)


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=120))
def test_any_tokens_join_to_what_the_decoder_says(tokenizer: Tokenizer, ids: list[int]) -> None:
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(token) for token in ids]
    assert "".join([*pieces, detokenizer.finish()]) == tokenizer.decode(ids)


def test_text_comes_with_its_token_and_not_later(tokenizer: Tokenizer) -> None:
    ids = [int(token) for token in tokenizer.encode("One two three")]
    detokenizer = Detokenizer(tokenizer)
    assert [detokenizer.push(token) for token in ids] == [tokenizer.decode([token]) for token in ids]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.text("abc", max_size=4), max_size=12),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_stop_filter_cuts_at_the_first_stop_whatever_the_pieces(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    # reference: the stop that is complete first as characters arrive; among those the earliest start
    expected = text
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            expected = text[: min(starts)]
            break
    one_by_one = StopFilter(stops)
    out = "".join(one_by_one.push(char) for char in text)
    assert out + ("" if one_by_one.stopped else one_by_one.finish()) == expected
    filtered = StopFilter(stops)
    got = "".join(filtered.push(piece) for piece in pieces)
    got += "" if filtered.stopped else filtered.finish()
    assert not any(stop in got for stop in stops) and text.startswith(got)
    assert (filtered.stopped is not None) == any(stop in text for stop in stops)


def test_held_text_is_let_out_as_soon_as_it_cannot_be_a_stop() -> None:
    stop = StopFilter(["</end>"])
    assert [stop.push(piece) for piece in ("a</", "e", "x", "</end>", "more")] == ["a", "", "</ex", "", ""]
    assert stop.stopped == "</end>"


def test_tool_calls_are_taken_out_of_the_content() -> None:
    text = (
        'Let me look.\n<tool_call>\n{"name": "find", "arguments": {"q": "é"}}\n</tool_call>'
        '\n<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    )
    content, calls = parse_tool_calls(text)
    assert content == "Let me look."
    assert calls == [ToolCall("find", '{"q": "é"}'), ToolCall("now", "{}")]


@pytest.mark.parametrize(
    "text",
    [
        "no call",
        "<tool_call>{broken</tool_call> tail",
        '<tool_call>["name"]</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>",
        '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": "\\ud800"}}</tool_call>',
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        f'<tool_call>{{"name": "f", "arguments": {"[" * 100_000}</tool_call>',
    ],
)
def test_what_is_no_call_stays_content(text: str) -> None:
    assert parse_tool_calls(text) == (text, [])


def test_a_call_whose_end_was_cut_off_counts_if_its_json_is_whole() -> None:
    assert parse_tool_calls('<tool_call>{"name": "f", "arguments": "{}"}') == ("", [ToolCall("f", "{}")])
