"""Content parts that are not text: a placeholder for each, as long as a stated rule says, named by digest.

The rule is OpenAI's published one where the part tells enough, a fixed number of tokens where it does
not; other providers count in the same order of magnitude. Nothing is downloaded.
"""

import base64
import binascii
import json
import re
import struct
from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any

from kvtool.blocks import fingerprint
from kvtool.requests import Message

LOW_DETAIL, TILE = 85, 170
"""Tokens of an image as such, and of each tile of 512 x 512 that it has in high detail."""
AUDIO_SECOND = 10
"""Tokens of a second of sound."""
UNKNOWN = {"image": LOW_DETAIL + 4 * TILE, "audio": 30 * AUDIO_SECOND, "video": 30 * 258, "file": 1500}
"""Tokens where a part does not tell: 1024 x 1024 pixels, half a minute, half a minute, a few pages."""
LEAST = 16
"""A placeholder is never shorter than the digest that names it."""
PLACEHOLDER = re.compile(r"<\|[^|>]{0,64}: (?:[a-p] ){15}[a-p]")
"""What `placeholder` begins with."""
HEADER = 1 << 18
"""Base64 characters in which a picture's size is looked for."""


def content_parts(content: object) -> Iterator[tuple[str, str]]:
    """(path suffix, text) of a message's content: a string, None, or a list of parts; a part that is not
    text gives its placeholder."""
    if content is None:
        return
    if isinstance(content, str):
        yield "", content
        return
    if not isinstance(content, list):
        yield "", json.dumps(content, ensure_ascii=False)
        return
    for index, part in enumerate(content):
        if isinstance(part, str):
            yield f"[{index}]", part
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            yield f"[{index}].text", part["text"]
        elif isinstance(part, dict):
            yield f"[{index}]", placeholder(part)


def placeholder(part: dict[str, Any]) -> str:
    """`<|TYPE: a b c ...|>`: single letters that spell the part's digest over and over, one a token.

    Every vocabulary has single letters with a space before them, so it is as long as `tokens` says, and
    its marker; equal parts give equal text, others differ from the first block on.
    """
    digest = fingerprint(json.dumps(part, sort_keys=True, ensure_ascii=False).encode())
    letters = ["abcdefghijklmnop"[int(digit, 16)] for digit in digest[:LEAST]]
    count = max(tokens(part), LEAST)
    spelled = " ".join((letters * ceil(count / LEAST))[:count])
    kind = part.get("type")
    return f"<|{kind if isinstance(kind, str) else 'part'}: {spelled}|>"


def tokens(part: dict[str, Any]) -> int:
    """Tokens that a part stands for; 0 for one that is no image, sound, film or file."""
    kind, data = _kind(part), _data(part)
    if kind == "audio":
        return _audio_tokens(data)
    if kind != "image":
        return UNKNOWN.get(kind, 0)
    if _find(part, ("detail",)) == "low":
        return LOW_DETAIL
    size = _pixels(_decoded(data[:HEADER]))
    return UNKNOWN["image"] if size is None else _image_tokens(*size)


def has_media(messages: Sequence[Message]) -> bool:
    """Whether some part of a message is counted by rule."""
    return any(
        isinstance(part, dict) and not isinstance(part.get("text"), str) and _kind(part) != ""
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
    )


def _image_tokens(width: int, height: int) -> int:
    """Shrunk into 2048 x 2048, then to a shorter side of 768, then cut into tiles."""
    shrink = min(1.0, 2048 / max(width, height, 1))
    shrink *= min(1.0, 768 / max(min(width, height) * shrink, 1))
    tiles = ceil(round(width * shrink, 6) / 512) * ceil(round(height * shrink, 6) / 512)
    return LOW_DETAIL + TILE * max(tiles, 1)


def _audio_tokens(data: str) -> int:
    """By the length of a WAV; anything else is taken for 128 kbit/s."""
    if not data:
        return UNKNOWN["audio"]
    head, size = _decoded(data[:64]), len(data.rstrip("=")) * 3 // 4
    wav = head[:4] == b"RIFF" and head[8:12] == b"WAVE" and len(head) >= 32
    rate = struct.unpack("<I", head[28:32])[0] if wav else 16_000
    return ceil(size / max(rate, 1000) * AUDIO_SECOND)


def _kind(part: dict[str, Any]) -> str:
    """image, audio, video, file, or nothing."""
    named = f"{part.get('type', '')} {_find(part, ('media_type', 'mime_type', 'mimeType')) or ''}"
    data_uri = next((text[5:40] for text in _strings(part) if text.startswith("data:")), "")
    for kind, words in (
        ("image", ("image",)),
        ("audio", ("audio",)),
        ("video", ("video",)),
        ("file", ("file", "document", "pdf")),
    ):
        if any(word in text for text in (named.lower(), data_uri.lower()) for word in words):
            return kind
    return ""


def _data(part: dict[str, Any]) -> str:
    """The part's own base64, if it has any."""
    for text in _strings(part):
        if text.startswith("data:") and "," in text[:200]:
            return text[text.index(",") + 1 :]
    found = _find(part, ("data",))
    return found if isinstance(found, str) else ""


def _find(part: dict[str, Any], keys: tuple[str, ...]) -> Any:
    """A member of the part, or of an object in it."""
    for place in (part, *(value for value in part.values() if isinstance(value, dict))):
        for key in keys:
            if isinstance(place.get(key), str):
                return place[key]
    return None


def _strings(part: dict[str, Any]) -> Iterator[str]:
    for value in part.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from (inner for inner in value.values() if isinstance(inner, str))


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text[: len(text) // 4 * 4])
    except (binascii.Error, ValueError):
        return b""


def _pixels(data: bytes) -> tuple[int, int] | None:
    """(width, height) of a PNG, GIF or JPEG that begins with `data`."""
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        return struct.unpack(">II", data[16:24])
    if data[:4] == b"GIF8" and len(data) >= 10:
        return struct.unpack("<HH", data[6:10])
    at = 2
    while data[:2] == b"\xff\xd8" and at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
    return None
