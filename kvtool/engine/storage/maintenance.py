"""Shard directories as build artefacts: what differs between two, many into one, and what can go."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvtool.analysis.reuse_model import ReuseModel
from kvtool.blocks import BlockHash
from kvtool.engine.storage.codec import load_codec, stored_parts
from kvtool.engine.storage.files import exclusive
from kvtool.engine.storage.index import BlockRow, index_to_bytes
from kvtool.engine.storage.manifest import (
    INDEX,
    MANIFEST,
    Manifest,
    commit,
    read_manifest,
    sha256,
    shard_name,
)
from kvtool.engine.storage.outlook import OUTLOOK, join, read_outlook, write_outlook
from kvtool.engine.storage.reuse import REUSE, read_reuse, write_reuse
from kvtool.engine.storage.shards import BadBlock, ShardSet, open_shards, read_index
from kvtool.engine.storage.signature import check
from kvtool.engine.storage.writer import Planned, write_shard
from kvtool.errors import KvtoolError

SHARD_BYTES = 256 << 20
"""About this many bytes go into one shard file."""

SHARD = re.compile(r"shard-\d{5,}\.safetensors")
WRITTEN = re.compile(rf"{SHARD.pattern}|{'|'.join(map(re.escape, (INDEX, MANIFEST, OUTLOOK, REUSE)))}")
TEMPORARY = re.compile(rf"\.({WRITTEN.pattern})\.\d+\.tmp")
"""Names of the files of a shard directory, and of what a crash leaves of them. No other name is touched."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How two directories differ. fields: what forbids sharing blocks between them; the rest are blocks."""

    fields: list[str]
    only_left: list[BlockHash]
    only_right: list[BlockHash]
    changed: list[BlockHash]  # in both, with other bytes or another codec
    same: int

    def __bool__(self) -> bool:
        return bool(self.fields or self.only_left or self.only_right or self.changed)


def diff(left: ShardSet, right: ShardSet) -> Difference:
    """Compare by hash and checksum; no block is read."""
    both = [row for row in left.rows if row.hash in right.index]
    changed = [
        row.hash
        for row in both
        if (row.checksum, row.codec) != (right.index[row.hash].checksum, right.index[row.hash].codec)
    ]
    return Difference(
        fields=left.manifest.identity.differences(right.manifest.identity),
        only_left=[row.hash for row in left.rows if row.hash not in right.index],
        only_right=[row.hash for row in right.rows if row.hash not in left.index],
        changed=changed,
        same=len(both) - len(changed),
    )


def merge(
    sources: Sequence[ShardSet], folder: Path, limit: int = SHARD_BYTES, key: bytes | None = None
) -> Manifest:
    """A new directory with every block of `sources`; the first that has a block gives it.

    Expected hits add up; the reuse model is that of the source that has most of them; what follows a state
    is what the first source that knows the state says. KvtoolError when the sources are of different models,
    or use one codec name for two configs. Every block is verified on its way. `key` signs the result; sources
    that are signed must be signed with it.
    """
    for source in sources:
        if source.manifest.signature is not None:
            check(source.folder, key, source.manifest.signed_bytes(), source.manifest.signature)
    first = sources[0]
    codecs: dict[str, dict[str, object]] = {}
    roots: dict[str, BlockHash] = {}
    for source in sources:
        fields = first.manifest.identity.differences(source.manifest.identity)
        if fields:
            raise KvtoolError(f"{source.folder} and {first.folder} differ in {'; '.join(fields)}")
        for name, config in source.manifest.codecs.items():
            if codecs.setdefault(name, config) != config:
                raise KvtoolError(f"{source.folder}: codec '{name}' is configured differently than elsewhere")
        roots.update(source.manifest.roots)
    picked: dict[BlockHash, tuple[ShardSet, BlockRow]] = {}
    for source in sources:
        for row in source.rows:
            if row.hash in picked:
                owner, kept = picked[row.hash]
                total = kept.expected_hits + row.expected_hits
                picked[row.hash] = (owner, replace(kept, expected_hits=total))
            else:
                picked[row.hash] = (source, row)
    cuts = [source.manifest.chunking for source in sources]
    target = replace(
        first.manifest,
        codecs=dict(sorted(codecs.items())),
        roots=roots,
        chunking=cuts[0] if all(cut == cuts[0] for cut in cuts) else None,
        files=(),
        complete=all(source.manifest.complete for source in sources),
    )
    reuse = _reuse(sources)
    outlooks = [found for source in sources if (found := read_outlook(source.folder)) is not None]
    with exclusive(folder):
        if (folder / MANIFEST).exists():
            raise KvtoolError(f"{folder}: there are shards already", "merge into a new directory")
        refuse_strangers(folder)
        sweep(folder)
        if reuse is not None:  # first: with the manifest the directory is finished
            write_reuse(folder, reuse)
        if outlooks:
            write_outlook(folder, join(outlooks))
        return _rewrite(folder, None, target, list(picked.values()), [], limit, key)


def _reuse(sources: Sequence[ShardSet]) -> ReuseModel | None:
    """Models of different logs cannot be added up: the one fitted to most use, the first among equals."""
    found = [
        (sum(row.expected_hits for row in source.rows), model)
        for source in sources
        if (model := read_reuse(source.folder)) is not None
    ]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def collect_garbage(
    folder: Path, keep_bytes: int | None = None, limit: int = SHARD_BYTES, key: bytes | None = None
) -> tuple[int, int]:
    """Delete what is of no use; (files removed, blocks dropped).

    Files that the manifest does not list always go. With blocks that fail their checksum go all that
    build on them; a later prewarm computes them again. keep_bytes: drop the blocks with the fewest expected
    hits until the rest fits. Files whose blocks all stay are left as they are. A signed directory needs its
    `key`.
    """
    read_manifest(folder)  # before the lock, which makes a folder that is not there
    with exclusive(folder):
        shards = open_shards(folder)
        check(folder, key, shards.manifest.signed_bytes(), shards.manifest.signature)
        keep = _sound(shards)
        if keep_bytes is not None:
            keep = _most_used(shards, keep, keep_bytes)
        dropped = len(shards.rows) - len(keep)
        if dropped:
            touched = {row.shard for row in shards.rows if row.hash not in keep}
            whole = [file for file in shards.manifest.files if file.number not in touched]
            moved = [(shards, row) for row in shards.rows if row.shard in touched and row.hash in keep]
            kept = [row for row in shards.rows if row.shard not in touched]
            target = replace(shards.manifest, files=tuple(whole), complete=False)
            _rewrite(folder, shards.manifest, target, moved, kept, limit, key)
        else:
            _forget_dropped(shards, key)
        shards.close()
        return len(sweep(folder)), dropped


def refuse_strangers(folder: Path) -> None:
    """KvtoolError where a directory without a manifest holds anything else than what a crash may leave."""
    for name in sorted(path.name for path in folder.iterdir()):
        ours = WRITTEN.fullmatch(name) or TEMPORARY.fullmatch(name)
        if name == MANIFEST or not ours:  # a manifest that is there and does not exist is a broken link
            raise KvtoolError(f"{folder}: not empty and no shard directory: {name}", "name another --out")


def sweep(folder: Path) -> list[str]:
    """Delete shard files that the manifest does not list, and what crashes left behind; their names."""
    listed: set[str] = set()
    owned = WRITTEN
    if (folder / MANIFEST).exists():
        listed = {file.name for file in read_manifest(folder).files}
        owned = SHARD
    found = [
        path
        for path in sorted(folder.iterdir())
        if TEMPORARY.fullmatch(path.name) or (owned.fullmatch(path.name) and path.name not in listed)
    ]
    for path in found:
        try:
            path.unlink()
        except OSError as error:  # a folder of such a name, no permission
            raise KvtoolError(
                f"{path}: not in the manifest, and cannot be deleted: {error.strerror}", "move it away"
            ) from error
    return [path.name for path in found]


def _forget_dropped(shards: ShardSet, key: bytes | None) -> None:
    """Finish what a crash left of dropping blocks: the index still has rows of them, token ids too."""
    index = index_to_bytes(shards.rows, shards.manifest.identity.shape.block_size)
    if shards.manifest.index_digests != (sha256(index),):
        commit(shards.folder, shards.manifest, shards.manifest, index, key)


def _sound(shards: ShardSet) -> set[BlockHash]:
    """Blocks that pass their checksum and whose parents do."""
    sound = set(shards.manifest.roots.values())
    for row in sorted(shards.rows, key=lambda row: row.depth):
        if row.parent in sound:
            try:
                shards.read_bytes(row)
            except BadBlock:
                continue
            sound.add(row.hash)
    return sound - set(shards.manifest.roots.values())


def _most_used(shards: ShardSet, keep: set[BlockHash], budget: int) -> set[BlockHash]:
    """The blocks of most expected hits that fit; who uses a block uses all above it, so parents come first.

    Stored hits can rise along a chain: a later log may know a parent and no longer what builds on it.
    """
    hits: dict[BlockHash, float] = {}
    for row in sorted(shards.rows, key=lambda row: -row.depth):
        hits[row.hash] = max(row.expected_hits, hits.get(row.hash, 0.0))
        hits[row.parent] = max(hits[row.hash], hits.get(row.parent, 0.0))
    chosen = set(shards.manifest.roots.values())
    for row in sorted(shards.rows, key=lambda row: (-hits[row.hash], row.depth, row.shard, row.row)):
        if row.hash in keep and row.parent in chosen and row.bytes <= budget:
            chosen.add(row.hash)
            budget -= row.bytes
    return chosen - set(shards.manifest.roots.values())


def _rewrite(
    folder: Path,
    old: Manifest | None,
    target: Manifest,
    moved: Sequence[tuple[ShardSet, BlockRow]],
    kept: list[BlockRow],
    limit: int,
    key: bytes | None,
) -> Manifest:
    """Copy the `moved` blocks into new shard files beside those that `target` lists, then commit."""
    taken = {file.number for manifest in (old, target) if manifest for file in manifest.files}
    codecs = {name: load_codec(config) for name, config in target.codecs.items()}
    rows = list(kept)
    files = list(target.files)
    for number, blocks in _packed(moved, free_numbers(taken), limit):
        planned = [
            Planned(
                row.hash,
                tuple(stored_parts(codecs[row.codec], target.identity.shape, row.depth == 0, row.bytes)),
            )
            for _, row in blocks
        ]
        with write_shard(folder / shard_name(number), planned) as writer:
            for place, (source, row) in enumerate(blocks):
                try:
                    writer.append(source.read_bytes(row))
                except BadBlock as error:
                    raise KvtoolError(
                        f"{source.folder}: {error.message}",
                        "kvtool shards gc takes bad blocks out",
                    ) from error
                rows.append(replace(row, shard=number, row=place, offset=writer.offsets[-1]))
        files.append(writer.file())
    files.sort(key=lambda file: file.number)
    target = replace(target, files=tuple(files))
    size = target.identity.shape.block_size
    if old is not None:  # until the new manifest stands, the index must also hold what the old one lists
        going = {file.number for file in old.files} - {file.number for file in files}
        everything = rows + [row for row in read_index(folder, old) if row.shard in going]
        old = commit(folder, old, target, index_to_bytes(everything, size), key)
    return commit(folder, old, target, index_to_bytes(rows, size), key)


def free_numbers(taken: set[int]) -> Iterator[int]:
    """Numbers for new shard files, ascending."""
    number = 0
    while True:
        if number not in taken:
            yield number
        number += 1


def _packed(
    moved: Sequence[tuple[ShardSet, BlockRow]], numbers: Iterator[int], limit: int
) -> Iterator[tuple[int, list[tuple[ShardSet, BlockRow]]]]:
    blocks: list[tuple[ShardSet, BlockRow]] = []
    size = 0
    for source, row in moved:
        if blocks and size + row.bytes > limit:
            yield next(numbers), blocks
            blocks, size = [], 0
        blocks.append((source, row))
        size += row.bytes
    if blocks:
        yield next(numbers), blocks
