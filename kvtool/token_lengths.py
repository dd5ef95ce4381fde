"""How few tokens a text can have, told from its length where the tokenizer lets that be known.

It can where the tokenizer reads bytes and nothing melts them together before: then no token stands for more
bytes than the longest entry of the vocabulary has. All else gives no bound.
"""

import json
from collections.abc import Callable
from typing import Any

from kvtool.token_bytes import BYTES, byte_alphabet

Fewest = Callable[[str], int]
"""A text -> a number of tokens that its encoding is not shorter than."""


def fewest_tokens(backend: Any) -> Fewest | None:
    """The bound for a `tokenizers.Tokenizer`, None where there is none."""
    tokenizer = json.loads(backend.to_str())
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    normalizers = _parts(tokenizer["normalizer"], "normalizers")
    splitters = _parts(tokenizer["pre_tokenizer"], "pretokenizers")
    composes = any(part["type"] == "NFC" for part in normalizers)
    spells = any(part["type"] == "ByteLevel" for part in splitters)
    if (
        model["type"] != "BPE"
        or not (spells or _knows_bytes(model))
        or not all(_keeps(part, composes) for part in normalizers)
        or not all(_splits(part) for part in splitters)
        or any(token["lstrip"] or token["rstrip"] for token in added)  # they take any white space with them
    ):
        return None
    width = len if spells else _bytes
    longest = max(*map(width, model["vocab"]), *(_bytes(token["content"]) for token in added), 1)
    dropped = _unknown_bytes(model) if spells else b""

    def fewest(text: str) -> int:
        # Characters melt with the marks behind them where a normalizer composes, ASCII ones never do with
        # each other.
        kept = text.encode("ascii", "ignore") if composes else text.encode()
        return -(-len(kept.translate(None, dropped)) // longest)

    return fewest


def _bytes(text: str) -> int:
    return len(text.encode())


def _parts(part: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    return (
        [leaf for one in part[name] for leaf in _parts(one, name)] if part["type"] == "Sequence" else [part]
    )


def _knows_bytes(model: dict[str, Any]) -> bool:
    """Whether what the vocabulary lacks becomes a token for each byte."""
    return bool(model["byte_fallback"]) and all(f"<0x{byte:02X}>" in model["vocab"] for byte in range(BYTES))


def _unknown_bytes(model: dict[str, Any]) -> bytes:
    """The bytes whose character is not in a byte-level vocabulary: where there is no token for the unknown,
    they leave nothing."""
    return bytes(byte for byte, char in sorted(byte_alphabet().items()) if char not in model["vocab"])


def _keeps(part: dict[str, Any], composes: bool) -> bool:
    """Whether a normalizer's text has as many bytes as what it was made from, or more; or as many as that
    has ASCII characters, where another one composes."""
    if part["type"] == "Replace":
        replaced = part["pattern"].get("String")
        return not composes and replaced is not None and _bytes(part["content"]) >= _bytes(replaced)
    return part["type"] in ("NFC", "Prepend")


def _splits(part: dict[str, Any]) -> bool:
    """Whether a pre-tokenizer drops nothing."""
    if part["type"] == "Split":
        return bool(part["behavior"] != "Removed")
    return part["type"] in ("ByteLevel", "Digits", "Metaspace")
