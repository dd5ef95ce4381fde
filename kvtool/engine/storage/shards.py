"""A shard directory, opened: find a block by its hash, read it, prove it. Torch only to decode."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvtool.blocks import BlockHash
from kvtool.engine.storage.direct import Came, File
from kvtool.engine.storage.index import BlockRow, block_checksum, index_from_bytes
from kvtool.engine.storage.manifest import INDEX, Manifest, read_manifest, sha256, shard_name
from kvtool.engine.storage.signature import check
from kvtool.errors import KvtoolError

if TYPE_CHECKING:
    from kvtool.engine.storage.codec import Block, BlockCodec


class BadBlock(KvtoolError):
    """A stored block that must not be used: serving counts it as a miss and computes it anew.

    `field` says what failed: `file`, `bytes` or `checksum`.
    """

    def __init__(self, row: BlockRow, field: str, reason: str) -> None:
        super().__init__(f"{shard_name(row.shard)} row {row.row} (block {row.hash.hex()}): {field}: {reason}")
        self.row = row
        self.field = field


@dataclass(slots=True)
class ShardSet:
    """The blocks of `folder`. `rows` are in shard order, so chains stand in the order they are read.

    Files are opened when first read and stay open; `close` lets go. Reading is thread-safe.
    """

    folder: Path
    manifest: Manifest
    rows: list[BlockRow]
    index: dict[BlockHash, BlockRow]
    _codecs: "dict[str, BlockCodec]"
    _files: dict[int, File]
    _direct: bool = False

    def read_bytes(self, row: BlockRow) -> bytearray:
        """A block's stored bytes, verified against its checksum. Raises BadBlock."""
        data = bytearray(row.bytes)
        self.check(row, self.file(row.shard).read(memoryview(data), row.offset))
        return data

    def check(self, row: BlockRow, came: Came) -> memoryview:
        """What came of a block, if it is the block's bytes. Raises BadBlock."""
        if isinstance(came, OSError):
            raise BadBlock(row, "file", came.strerror or str(came)) from came
        if len(came) != row.bytes:
            raise BadBlock(row, "bytes", f"the file ends after {len(came)} of {row.bytes}")
        if block_checksum(row.hash, came) != row.checksum:
            raise BadBlock(row, "checksum", "does not match the stored bytes")
        return came

    def file(self, number: int) -> File:
        """The file that holds the blocks of shard `number`."""
        return self._files.setdefault(number, File(self.folder / shard_name(number), self._direct))

    def read_past_cache(self) -> None:
        """From now on, where whole pages are read."""
        self._direct = True
        for file in self._files.values():
            file.direct = True

    @property
    def refused(self) -> int:
        """Reads that the file system did not take past the page cache."""
        return sum(file.refused for file in list(self._files.values()))

    def read_block(self, block: BlockHash) -> "Block":
        """Keys and values by layer, on the CPU, in the shards' dtype. Raises BadBlock, KeyError if absent."""
        from kvtool.engine.storage.codec import decode_block, load_codec

        row = self.index[block]
        if row.codec not in self._codecs:
            self._codecs[row.codec] = load_codec(self.manifest.codecs[row.codec])
        data = self.read_bytes(row)
        return decode_block(self._codecs[row.codec], self.manifest.identity.shape, data, row.depth == 0)

    def prove(self, key: bytes) -> None:
        """KvtoolError unless the directory is signed with `key` and every file is what was signed.

        Reads every byte. Names the field or the file that is not.
        """
        manifest = self.manifest
        check(self.folder, key, manifest.signed_bytes(), manifest.signature)
        for file in manifest.files:
            try:
                with os.fdopen(os.dup(self.file(file.number).descriptor()), "rb") as handle:
                    handle.seek(0)
                    digest = "sha256:" + hashlib.file_digest(handle, "sha256").hexdigest()
            except OSError as error:
                raise KvtoolError(f"{self.folder / file.name}: {error.strerror}") from error
            if digest != file.digest:
                raise KvtoolError(
                    f"{self.folder / file.name}: digest: not what was signed",
                    "take the file from who signed it, or delete it and run prewarm again",
                )

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


def open_shards(folder: Path) -> ShardSet:
    """Read and check manifest and index (not the blocks: each is proven when it is read).

    KvtoolError names the file and the field that is wrong. The caller compares identities.
    """
    manifest, rows = read_listing(folder)
    return ShardSet(folder, manifest, rows, {row.hash: row for row in rows}, {}, {})


def read_listing(folder: Path) -> tuple[Manifest, list[BlockRow]]:
    """Manifest and index of `folder` as one commit left them, though another may come meanwhile."""
    manifest = read_manifest(folder)
    while True:
        try:
            return manifest, read_index(folder, manifest)
        except KvtoolError:
            newer = read_manifest(folder)
            if newer == manifest:
                raise
            manifest = newer


def read_index(folder: Path, manifest: Manifest) -> list[BlockRow]:
    """The index rows of the files that `manifest` lists, in shard order, checked for shape and place."""
    path = folder / INDEX
    hint = "restore the file, or delete the directory and run prewarm again"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise KvtoolError(f"{path}: {error.strerror}", hint) from error
    if sha256(data) not in manifest.index_digests:
        raise KvtoolError(f"{path}: digest is not the manifest's", hint)
    size = manifest.identity.shape.block_size
    listed = {file.number: 0 for file in manifest.files}
    rows = []
    for row in index_from_bytes(data, size, str(path)):
        if row.shard not in listed:  # a commit that did not finish
            continue
        if row.row != listed[row.shard]:
            raise KvtoolError(
                f"{path}: row: {row.row} in shard {row.shard} stands where {listed[row.shard]} should"
            )
        if row.codec not in manifest.codecs:
            raise KvtoolError(f"{path}: codec: '{row.codec}' is not in the manifest")
        listed[row.shard] += 1
        rows.append(row)
    for file in manifest.files:
        if listed[file.number] != file.rows:
            raise KvtoolError(
                f"{path}: rows: {listed[file.number]} for {file.name}, the manifest says {file.rows}"
            )
    return rows
