"""Placeholders: their length by the stated rule, their identity by digest."""

import base64
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtool.analysis.analyze import AnalyzeConfig, analyze
from kvtool.media import content_parts, has_media, placeholder, tokens
from kvtool.requests import Request, Source
from kvtool.templates import ChatMLTools, JinjaTemplate
from kvtool.tokens import PromptEncoder, load_tokenizer


def data_uri(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"rest of the file"


def jpeg(width: int, height: int) -> bytes:
    comment = b"\xff\xfe" + struct.pack(">H", 300) + b"c" * 298
    return b"\xff\xd8" + comment + b"\xff\xc0\0\x11\x08" + struct.pack(">HH", height, width) + b"\0" * 9


def image(url: str, **more: str) -> dict:
    return {"type": "image_url", "image_url": {"url": url, **more}}


WAV = b"RIFF....WAVEfmt " + struct.pack("<IHHII", 16, 1, 1, 8000, 16000) + b"\0" * (32000 - 32)


@pytest.mark.parametrize(
    ("part", "count"),
    [
        (image("https://example.com/a.png"), 765),
        (image("https://example.com/a.png", detail="low"), 85),
        (image(data_uri(png(512, 512), "image/png")), 85 + 170),
        (image(data_uri(png(1024, 1024), "image/png")), 765),
        (image(data_uri(png(2048, 4096), "image/png")), 1105),  # OpenAI's own worked example
        (image(data_uri(jpeg(600, 400), "image/jpeg")), 85 + 2 * 170),
        (image(data_uri(b"GIF89a" + struct.pack("<HH", 10, 1000), "image/gif")), 85 + 2 * 170),
        (image(data_uri(png(0, 0), "image/png")), 85 + 170),
        ({"type": "input_image", "image_url": data_uri(png(512, 513), "image/png")}, 85 + 2 * 170),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png",
          "data": base64.b64encode(png(9, 9)).decode()}}, 85 + 170),
        ({"inlineData": {"mimeType": "image/png", "data": base64.b64encode(png(9, 9)).decode()}}, 255),
        ({"type": "input_audio", "input_audio": {"data": base64.b64encode(WAV).decode()}}, 20),
        ({"type": "input_audio", "input_audio": {"id": "audio_1"}}, 300),
        ({"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}}, 1500),
        ({"type": "tool_reference", "tool_name": "x"}, 0),
    ],
)  # fmt: skip
def test_the_rule(part: dict, count: int) -> None:
    assert tokens(part) == count
    assert has_media([{"role": "user", "content": [part]}]) == (count > 0)


def test_a_placeholder_has_as_many_tokens_as_the_rule_says_and_its_marker() -> None:
    tokenizer = load_tokenizer("embedded")
    for part in (image("https://example.com/a.png"), image("https://example.com/b.png", detail="low")):
        extra = len(tokenizer.encode(placeholder(part))) - tokens(part)
        assert 0 <= extra < 16


def test_the_same_picture_is_the_same_prefix_and_another_is_not_from_its_first_block() -> None:
    encoder = PromptEncoder(load_tokenizer("embedded"), ChatMLTools())

    def prompt(row: int, url: str) -> Request:
        messages = [{"role": "user", "content": [image(url), {"type": "text", "text": f"question {row}"}]}]
        return Request(id=str(row), source=Source("log", row), messages=messages)

    requests = [prompt(1, "a"), prompt(2, "a"), prompt(3, "b")]
    found = analyze(requests, lambda: encoder, AnalyzeConfig((8,)))
    same, other = found.rates.matched[1], found.rates.matched[2]
    assert same * 8 > 765 and other <= 2
    assert any("counted by rule" in note for note in found.notes)
    plain = [Request(id="", source=Source("log", 1), messages=[{"role": "user", "content": "hi"}])]
    assert not any(
        "counted by rule" in note for note in analyze(plain, lambda: encoder, AnalyzeConfig()).notes
    )


KEYS = st.sampled_from(["type", "data", "image_url", "url", "detail", "media_type", "source", "x"])
LEAVES = (
    st.none() | st.integers() | st.sampled_from(["image", "audio", "low", "data:image/png;base64,iVBORw0="])
)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8
)


@given(st.dictionaries(KEYS, JSON))
def test_any_part_has_a_placeholder(part: dict) -> None:
    assert placeholder(part) == placeholder(dict(reversed(part.items())))
    assert len(placeholder(part).split(" ")) == max(tokens(part), 16) + 1


@given(st.binary(max_size=60), st.sampled_from([b"\xff\xd8\xff", b"GIF8", b"\x89PNG\r\n\x1a\n", b"RIFF"]))
def test_damaged_pictures_and_sounds_have_a_size_all_the_same(rest: bytes, head: bytes) -> None:
    for kind in ("image/jpeg", "audio/wav"):
        count = tokens({"type": "input_file", "data": data_uri(head + rest, kind)})
        assert isinstance(count, int) and count >= 1


IN_PARTS = (
    "{% for m in messages %}[{{ m['role'] }}]{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{{ part['text'] }}{% endfor %}{% endif %}{% endfor %}"
)
TEXT_ALONE = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] | trim }}{% endfor %}"


@pytest.mark.parametrize("source", [IN_PARTS, TEXT_ALONE])
def test_jinja_templates_see_parts_as_text_with_their_places(source: str) -> None:
    picture = image("https://example.com/a.png")
    content = [{"type": "text", "text": "look: "}, picture, {"type": "text", "text": "what is it?"}]
    rendered = JinjaTemplate(source, "t").render([{"role": "user", "content": content}], None)
    assert rendered.text == f"[user]look: {placeholder(picture)}what is it?"
    assert [(rendered.text[span.start : span.end], span.path) for span in rendered.spans] == [
        (text, f"messages[0].content{suffix}") for suffix, text in content_parts(content)
    ]


def test_letters_are_one_token_each() -> None:
    tokenizer = load_tokenizer("embedded")
    lengths = [len(tokenizer.encode(f"x {letter}")) for letter in "abcdefghijklmnop"]
    assert np.array_equal(lengths, [2] * 16)
