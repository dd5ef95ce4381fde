"""Which bytes a token stands for: what its text is where it begins or ends inside a character."""

import json
from collections.abc import Callable
from typing import Any

BYTES = 256

TokenBytes = Callable[[int], bytes | None]
"""A token id -> its bytes, None where the tokenizer does not tell."""


def byte_alphabet() -> dict[int, str]:
    """GPT-2's characters for bytes: printable ones stand for themselves, the others follow from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), BYTES)}
    others = (byte for byte in range(BYTES) if byte not in printable)
    characters = {byte: chr(byte) for byte in printable}
    return characters | {byte: chr(BYTES + place) for place, byte in enumerate(others)}


def token_bytes(backend: Any) -> TokenBytes:
    """For a `tokenizers.Tokenizer`: byte-level vocabularies, SentencePiece's, and added tokens of any."""
    tokenizer = json.loads(backend.to_str())
    added = {token["id"]: token["content"].encode() for token in tokenizer["added_tokens"]}
    parts = _parts(tokenizer["decoder"])
    kinds = {part["type"] for part in parts}
    alphabet = {character: byte for byte, character in byte_alphabet().items()}
    fallback = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(BYTES)} if "ByteFallback" in kinds else {}
    spaces = [part["replacement"] for part in parts if part["type"] == "Metaspace"]
    spaces += [
        part["pattern"].get("String")
        for part in parts
        if part["type"] == "Replace" and part["content"] == " "
    ]

    def of(token: int) -> bytes | None:
        if token in added:
            return bytes(added[token])
        piece = backend.id_to_token(token)
        if piece is None:
            return b""
        if "ByteLevel" in kinds and all(character in alphabet for character in piece):
            return bytes(alphabet[character] for character in piece)
        if piece in fallback:
            return fallback[piece]
        for space in filter(None, spaces):
            piece = piece.replace(space, " ")
        return piece.encode() if spaces else None

    return of


def _parts(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [part for one in decoder["decoders"] for part in _parts(one)]
    return [decoder]
