"""The write-back area: blocks that left memory, in one file of fixed records that survives a restart.

A record is a header (hash, parent, depth, tokens, checksums) and a block's bytes; where a block stands
is read from the headers at start, so there is no index to fall behind the data. Writes are not
synced: a torn record fails its checksum and is computed anew.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvtool.blocks import BlockHash, TokenIds, fingerprint
from kvtool.errors import KvtoolError

MAGIC = b"KVWB"
PAGE = 4096
FIXED = struct.Struct("<4sI16s16s16s16s")
"""magic, depth, hash, parent, payload checksum, header checksum; the tokens follow."""


@dataclass(frozen=True, slots=True)
class Survivor:
    """A block found in the area. `parent` is the chain's root at depth 0. tokens: uint32 [block_size]."""

    slot: int
    hash: BlockHash
    parent: BlockHash
    depth: int
    tokens: TokenIds


class WriteBack:
    """`slots` records for blocks of `block_bytes` bytes in `folder`/blocks.kv. One process at a time."""

    def __init__(self, folder: Path, slots: int, block_size: int, block_bytes: int) -> None:
        """Opens or makes the file; KvtoolError when it cannot be used or another server has it."""
        self.slots = slots
        self._block_size = block_size
        self._block_bytes = block_bytes
        self._header = FIXED.size + 4 * block_size
        self._stride = -(-(self._header + block_bytes) // PAGE) * PAGE
        path = folder / "blocks.kv"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise KvtoolError(f"--disk {folder}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise KvtoolError(
                f"{path}: another server is using it", "give each server its own --disk"
            ) from error
        os.truncate(self._file, min(os.fstat(self._file).st_size, slots * self._stride))

    def survivors(self) -> Iterator[Survivor]:
        """Blocks whose headers are whole, in slot order. Their bytes are proven when they are read."""
        for slot in range(min(self.slots, -(-os.fstat(self._file).st_size // self._stride))):
            header = os.pread(self._file, self._header, slot * self._stride)
            if len(header) < self._header:
                return
            magic, depth, block, parent, payload, check = FIXED.unpack_from(header)
            tokens = np.frombuffer(header, "<u4", self._block_size, FIXED.size)
            if magic == MAGIC and check == _check(depth, block, parent, payload, tokens):
                yield Survivor(slot, BlockHash(block), BlockHash(parent), depth, tokens.astype(np.uint32))

    def write(self, slot: int, block: Survivor, data: bytes) -> None:
        """Fill a record. OSError when the disk is full or fails; the record is then invalid."""
        assert len(data) == self._block_bytes
        payload = bytes.fromhex(fingerprint(block.hash, data))
        check = _check(block.depth, block.hash, block.parent, payload, block.tokens)
        header = FIXED.pack(MAGIC, block.depth, block.hash, block.parent, payload, check)
        record = header + block.tokens.astype("<u4").tobytes() + data
        at = slot * self._stride
        written = 0
        while written < len(record):
            written += os.pwrite(self._file, record[written:], at + written)

    def read(self, slot: int, block: BlockHash) -> bytes | None:
        """The block's bytes, or None when the record is another block's or its checksum fails."""
        try:
            record = os.pread(self._file, self._header + self._block_bytes, slot * self._stride)
        except OSError:
            return None
        if len(record) < self._header + self._block_bytes:
            return None
        _, _, stored, _, payload, _ = FIXED.unpack_from(record)
        data = record[self._header :]
        if stored != block or bytes.fromhex(fingerprint(block, data)) != payload:
            return None
        return data

    def close(self) -> None:
        """Close the file and let other servers have it."""
        os.close(self._file)


def _check(depth: int, block: bytes, parent: bytes, payload: bytes, tokens: TokenIds) -> bytes:
    """Checksum of a header's fields, 16 bytes."""
    return bytes.fromhex(
        fingerprint(depth.to_bytes(4, "little"), block, parent, payload, tokens.astype("<u4").tobytes())
    )
