"""A shard directory's signature: who holds the key vouches for every byte, and a server may insist on it.

HMAC-SHA256 over the manifest without its last two fields. The manifest holds sha256 of the index and of
each shard file, so this covers them all; reuse.json, which can cost hits but no answer, is not covered.
Checksums of blocks guard against accidents, not against forgers: a proof reads the files.
"""

import hashlib
import hmac
from pathlib import Path

from kvtool.errors import KvtoolError

DOMAIN = b"kvtool.shards/1 signature\0"
LEAST = 16
"""Bytes of a key at least."""


def load_key(path: Path) -> bytes:
    """The key in `path`, line ends at its end left out."""
    try:
        key = path.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise KvtoolError(f"--signing-key {path}: {error.strerror}") from error
    if len(key) < LEAST:
        raise KvtoolError(
            f"--signing-key {path}: {len(key)} bytes, {LEAST} are needed",
            f"openssl rand -hex 32 > {path}",
        )
    return key


def sign(key: bytes, body: bytes) -> str:
    """64 hex digits."""
    return hmac.new(key, DOMAIN + body, hashlib.sha256).hexdigest()


def check(folder: Path, key: bytes | None, body: bytes, signature: str | None) -> None:
    """KvtoolError unless a directory is signed with `key`, or neither has one."""
    where = f"{folder}: signature"
    if key is None:
        if signature is not None:
            raise KvtoolError(
                f"{where}: these shards are signed, and what changes them must sign anew",
                "give --signing-key",
            )
    elif signature is None:
        raise KvtoolError(
            f"{where}: these shards are unsigned",
            "kvtool shards merge with --signing-key makes a signed copy",
        )
    elif not hmac.compare_digest(sign(key, body), signature):
        raise KvtoolError(
            f"{where}: not made with this key, or the manifest was changed since",
            "take the shards from who signed them, or the key file that they used",
        )
