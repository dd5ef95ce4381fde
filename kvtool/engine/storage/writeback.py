"""The write-back area: blocks that left memory, in one file of fixed records that survives a restart.

A record is a header (hash, parent, root, depth, codec, tokens, checksums) and a block's encoded bytes;
where a block stands is read from the headers at start, so there is no index to fall behind the data.
Writes are not synced: a torn record fails its checksum and is computed anew.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvtool.blocks import BlockHash, TokenIds, fingerprint
from kvtool.engine.storage.direct import Bytes, Came, File
from kvtool.errors import KvtoolError

FILE = "blocks.kv"
MAGIC = b"KVW2"
PAGE = 4096
FIXED = struct.Struct("<4sII16s16s16s16s16s16s")
"""magic, depth, payload bytes, codec, hash, parent, root, checksums of payload and header; tokens follow."""


@dataclass(frozen=True, slots=True)
class Survivor:
    """A block found in the area. `parent` is the chain's root at depth 0. tokens: uint32 [block_size].

    root: of its chain, which is not the parent's where a tenant's own blocks follow public ones.
    """

    slot: int
    hash: BlockHash
    parent: BlockHash
    root: BlockHash
    depth: int
    tokens: TokenIds


class WriteBack:
    """`slots` records for blocks of at most `block_bytes` encoded bytes in `folder`/blocks.kv.

    One process at a time. Records that another codec made are not taken over.
    """

    def __init__(self, folder: Path, slots: int, block_size: int, block_bytes: int, codec: str) -> None:
        """Opens or makes the file; KvtoolError when it cannot be used or another server has it."""
        self.slots = slots
        self._block_size = block_size
        self.block_bytes = block_bytes
        self._codec = codec.encode().ljust(16, b"\0")
        assert len(self._codec) == 16
        self._header = FIXED.size + 4 * block_size
        self._stride = record_bytes(block_size, block_bytes)
        path = folder / FILE
        self.file = File(path)
        """To read blocks from, at `place_of`."""
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
            magic, depth, size, codec, block, parent, root, payload, check = FIXED.unpack_from(header)
            tokens = np.frombuffer(header, "<u4", self._block_size, FIXED.size)
            fields = (depth, size, codec, block, parent, root, payload)
            if magic == MAGIC and codec == self._codec and check == _check(*fields, tokens):
                yield Survivor(
                    slot,
                    BlockHash(block),
                    BlockHash(parent),
                    BlockHash(root),
                    depth,
                    tokens.astype(np.uint32),
                )

    def record(self, block: Survivor, data: Bytes) -> bytes:
        """A block's record. KvtoolError when the data are longer than one, as compressed ones can be."""
        if len(data) > self.block_bytes:
            raise KvtoolError("the encoded block is longer than a record")
        payload = bytes.fromhex(fingerprint(block.hash, data))
        fields = (block.depth, len(data), self._codec, block.hash, block.parent, block.root, payload)
        header = FIXED.pack(MAGIC, *fields, _check(*fields, block.tokens))
        return b"".join([header, block.tokens.astype("<u4").tobytes(), data])

    def write(self, slot: int, record: bytes) -> None:
        """OSError when the disk is full or fails, and what is there is no record."""
        left, at = memoryview(record), slot * self._stride
        while left:
            written = os.pwrite(self._file, left, at)
            left, at = left[written:], at + written

    def place_of(self, slot: int) -> tuple[int, int]:
        """Offset and bytes of a record, which may be cut off at the file's end."""
        return slot * self._stride, self._header + self.block_bytes

    def check(self, block: BlockHash, came: Came) -> memoryview | None:
        """The block's bytes in what came of a record.

        None when nothing did, the record is another block's or its checksum fails.
        """
        if isinstance(came, OSError) or len(came) < self._header:
            return None
        _, _, size, codec, stored, _, _, payload, _ = FIXED.unpack_from(came)
        if codec != self._codec or stored != block or size > len(came) - self._header:
            return None
        data = came[self._header : self._header + size]
        return data if bytes.fromhex(fingerprint(block, data)) == payload else None

    def close(self) -> None:
        """Close the file and let other servers have it."""
        self.file.close()
        os.close(self._file)


def bytes_taken(folder: Path) -> int:
    """What an area in `folder` takes of its disk, 0 where there is none: a file of records may have holes."""
    try:
        return (folder / FILE).stat().st_blocks * 512
    except OSError:
        return 0


def other_areas(folder: Path) -> int:
    """Bytes of the areas beside `folder`: those of other models, dtypes or block sizes, which stay."""
    return sum(bytes_taken(area) for area in folder.parent.glob("*/") if area.name != folder.name)


def record_bytes(block_size: int, block_bytes: int) -> int:
    """Bytes of a record for blocks of at most `block_bytes`, in whole pages."""
    return -(-(FIXED.size + 4 * block_size + block_bytes) // PAGE) * PAGE


def _check(
    depth: int,
    size: int,
    codec: bytes,
    block: bytes,
    parent: bytes,
    root: bytes,
    payload: bytes,
    tokens: TokenIds,
) -> bytes:
    """Checksum of a header's fields, 16 bytes."""
    numbers = depth.to_bytes(4, "little") + size.to_bytes(4, "little")
    return bytes.fromhex(
        fingerprint(numbers, codec, block, parent, root, payload, tokens.astype("<u4").tobytes())
    )
