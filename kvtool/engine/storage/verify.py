"""Every byte of a shard directory, checked: files, headers, blocks, and the hash chains that name them."""

import hashlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvtool.blocks import BlockHash, child_hash
from kvtool.engine.storage.codec import load_codec, stored_parts
from kvtool.engine.storage.index import BlockRow, block_checksum
from kvtool.engine.storage.manifest import INDEX, Manifest, ShardFile
from kvtool.engine.storage.outlook import OUTLOOK, read_outlook
from kvtool.engine.storage.reuse import REUSE, read_reuse
from kvtool.engine.storage.shards import read_listing
from kvtool.engine.storage.signature import check
from kvtool.engine.storage.writer import Planned, shard_header
from kvtool.errors import KvtoolError


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong. `block` is None where it concerns the whole file; `field` says what failed."""

    file: str
    block: BlockHash | None
    field: str
    reason: str


def verify(
    folder: Path, progress: Callable[[int], None] = lambda _: None, key: bytes | None = None
) -> list[Fault]:
    """All faults of `folder`, in file order; `progress` gets the number of bytes read so far.

    `key`: that it is signed with this one is checked too. A manifest or an index that cannot be trusted at
    all is a KvtoolError, as for `open_shards`.
    """
    manifest, rows = read_listing(folder)
    if key is not None:
        check(folder, key, manifest.signed_bytes(), manifest.signature)
    faults = _chains(manifest, rows)
    total = 0

    def advance(count: int) -> None:
        nonlocal total
        total += count
        progress(total)

    by_shard: dict[int, list[BlockRow]] = defaultdict(list)
    for row in rows:
        by_shard[row.shard].append(row)
    for file in manifest.files:
        try:
            faults.extend(_file(folder, file, by_shard[file.number], manifest, advance))
        except OSError as error:  # no permission, a disk that fails
            faults.append(Fault(file.name, None, "file", error.strerror or str(error)))
    return faults + _learned(folder)


def _learned(folder: Path) -> list[Fault]:
    """Files beside the blocks that a server would refuse. They cost no answer: no digest is kept of them."""
    faults = []
    for name, read in ((OUTLOOK, read_outlook), (REUSE, read_reuse)):
        try:
            read(folder)
        except KvtoolError as error:
            reason = error.message.removeprefix(f"{folder / name}: ")
            faults.append(Fault(name, None, "file", f"{reason}: run prewarm again, or delete it"))
    return faults


def _chains(manifest: Manifest, rows: list[BlockRow]) -> list[Fault]:
    """Each block's hash must follow from its parent's and its tokens, down from a root that is listed."""
    faults = []
    depths = dict.fromkeys(manifest.roots.values(), -1) | {row.hash: row.depth for row in rows}
    if len({row.hash for row in rows}) != len(rows):
        faults.append(Fault(INDEX, None, "hash", "a block is listed twice"))
    for row in rows:
        if child_hash(row.parent, row.tokens) != row.hash:
            faults.append(Fault(INDEX, row.hash, "hash", "does not follow from parent and tokens"))
        if depths.get(row.parent) != row.depth - 1:
            faults.append(Fault(INDEX, row.hash, "parent", "is not stored one level above"))
    return faults


def _file(
    folder: Path, file: ShardFile, rows: list[BlockRow], manifest: Manifest, advance: Callable[[int], None]
) -> list[Fault]:
    """One pass over a shard file; blocks are judged one by one, so that a bad byte costs one block."""
    path = folder / file.name
    if not path.is_file():
        return [Fault(file.name, None, "file", "is missing")]
    size = path.stat().st_size
    faults = []
    if size != file.bytes:
        faults.append(Fault(file.name, None, "bytes", f"{size}, the manifest says {file.bytes}"))
    shape = manifest.identity.shape
    codecs = {name: load_codec(config) for name, config in manifest.codecs.items()}
    header = shard_header(
        [
            Planned(row.hash, tuple(stored_parts(codecs[row.codec], shape, row.depth == 0, row.bytes)))
            for row in rows
        ]
    )
    digest = hashlib.sha256()
    with path.open("rb") as handle:

        def read(count: int) -> bytes:
            data = handle.read(count)
            digest.update(data)
            advance(len(data))
            return data

        if read(len(header)) != header:
            faults.append(Fault(file.name, None, "header", "is not the one that index and codecs give"))
        at = len(header)
        for row in rows:
            data = read(row.bytes)
            if row.offset != at:
                faults.append(Fault(INDEX, row.hash, "offset", f"{row.offset} where {at} is right"))
            if len(data) != row.bytes:
                faults.append(
                    Fault(file.name, row.hash, "bytes", f"the file ends after {len(data)} of {row.bytes}")
                )
            elif block_checksum(row.hash, data) != row.checksum:
                faults.append(Fault(file.name, row.hash, "checksum", "does not match the stored bytes"))
            at += row.bytes
        while read(1 << 20):
            pass
    if "sha256:" + digest.hexdigest() != file.digest and not faults:
        faults.append(Fault(file.name, None, "digest", "is not the manifest's"))
    return faults
