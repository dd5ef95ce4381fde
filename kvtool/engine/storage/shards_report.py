"""What `kvtool shards` has to say, for programs and for people."""

from pathlib import Path
from typing import Any

from kvtool.engine.storage.index import BlockRow
from kvtool.engine.storage.maintenance import Difference
from kvtool.engine.storage.manifest import Manifest
from kvtool.engine.storage.shards import ShardSet
from kvtool.engine.storage.verify import Fault
from kvtool.report import Column, Report, Table, plural

SHOWN = 20
"""Rows of a table for people; JSON has all."""


def listing(shards: ShardSet) -> Report:
    """ls, and the result of a merge: kvtool.shards-ls/1."""
    manifest = shards.manifest
    identity = manifest.identity
    stored = sum(row.bytes for row in shards.rows)
    elements = len(shards.rows) * identity.shape.elements
    data: dict[str, Any] = {
        "schema": "kvtool.shards-ls/1",
        "folder": str(shards.folder),
        "model": {"name": identity.name, **identity.model},
        "shape": identity.shape.to_json(),
        "namespaces": [
            {"tenant": tenant, "root": root.hex()} for tenant, root in sorted(manifest.roots.items())
        ],
        "codecs": manifest.codecs,
        "chunking": manifest.chunking,
        "complete": manifest.complete,
        "signed": manifest.signature is not None,
        "blocks": len(shards.rows),
        "tokens": len(shards.rows) * identity.shape.block_size,
        "bytes": stored,
        "bits_per_element": 8 * stored / elements if elements else None,
        "files": [
            {"name": file.name, "blocks": file.rows, "bytes": file.bytes, "digest": file.digest}
            for file in manifest.files
        ],
        "prefixes": [
            {"hash": row.hash.hex(), "tokens": (row.depth + 1) * identity.shape.block_size,
             "expected_hits": row.expected_hits, "codec": row.codec}
            for row in _ends(shards)
        ],
    }  # fmt: skip
    headline = [
        f"{shards.folder}: {len(shards.rows):,} blocks of {identity.shape.block_size} tokens "
        f"for {identity.name} ({identity.shape.dtype})"
        + ("" if manifest.signature is None else ", signed")
        + ("" if manifest.complete else ", unfinished: run prewarm again")
    ]
    files = Table(
        "Files",
        [Column("file"), Column("blocks", "count"), Column("size", "bytes")],
        [[file.name, file.rows, file.bytes] for file in manifest.files],
    )
    prefixes = Table(
        "Longest prefixes, most used first",
        [
            Column("ends with block"),
            Column("tokens", "count"),
            Column("expected hits", "count"),
            Column("codec"),
        ],
        [
            [row["hash"], row["tokens"], row["expected_hits"], row["codec"]]
            for row in data["prefixes"][:SHOWN]
        ],
    )
    return Report(data, headline, [files, prefixes])


def _ends(shards: ShardSet) -> list[BlockRow]:
    """Blocks that no other block builds on, those with most hits first."""
    parents = {row.parent for row in shards.rows}
    ends = [row for row in shards.rows if row.hash not in parents]
    return sorted(ends, key=lambda row: (-row.expected_hits, -row.depth, row.hash))


def verdict(folder: Path, manifest: Manifest, faults: list[Fault]) -> Report:
    """verify: kvtool.shards-verify/1."""
    data: dict[str, Any] = {
        "schema": "kvtool.shards-verify/1",
        "folder": str(folder),
        "blocks": manifest.rows,
        "files": len(manifest.files),
        "bytes": sum(file.bytes for file in manifest.files),
        "complete": manifest.complete,
        "faults": [
            {"file": fault.file, "block": fault.block.hex() if fault.block else None,
             "field": fault.field, "reason": fault.reason}
            for fault in faults
        ],
    }  # fmt: skip
    held = f"{plural(manifest.rows, 'block')} in {plural(len(manifest.files), 'file')}"
    table = Table(
        "Faults",
        [Column("file"), Column("block"), Column("field"), Column("reason")],
        [[row["file"], row["block"], row["field"], row["reason"]] for row in data["faults"]],
    )
    if not faults:
        note = "unfinished: prewarm was interrupted, or gc dropped blocks; run prewarm again"
        return Report(
            data, [f"{folder}: {held}, every byte verified"], notes=[] if manifest.complete else [note]
        )
    notes = []
    if any(fault.field in ("checksum", "bytes") or fault.reason == "is missing" for fault in faults):
        notes.append("kvtool shards gc drops bad blocks; a later prewarm computes them again")
    if any(fault.field in ("header", "digest") for fault in faults):
        notes.append(
            "delete a shard file with a wrong header or digest; a later prewarm computes its blocks again"
        )
    return Report(data, [f"{folder}: {plural(len(faults), 'fault')}"], [table], notes=notes)


def comparison(left: Path, right: Path, difference: Difference) -> Report:
    """diff: kvtool.shards-diff/1."""
    data: dict[str, Any] = {
        "schema": "kvtool.shards-diff/1",
        "left": str(left),
        "right": str(right),
        "fields": difference.fields,
        "only_left": [block.hex() for block in difference.only_left],
        "only_right": [block.hex() for block in difference.only_right],
        "changed": [block.hex() for block in difference.changed],
        "same": difference.same,
    }
    headline = [
        f"{difference.same:,} blocks are the same, {len(difference.changed):,} changed, "
        f"{len(difference.only_left):,} only in {left}, {len(difference.only_right):,} only in {right}",
        *(f"differs (left / right): {field}" for field in difference.fields),
    ]
    rows = [
        [block, where]
        for key, where in (("changed", "changed"), ("only_left", str(left)), ("only_right", str(right)))
        for block in data[key][:SHOWN]
    ]
    tables = [Table("Blocks", [Column("block"), Column("where")], rows)] if rows else []
    return Report(data, headline, tables)


def cleaning(shards: ShardSet, files: int, blocks: int) -> Report:
    """gc: kvtool.shards-gc/1."""
    data = {
        "schema": "kvtool.shards-gc/1",
        "folder": str(shards.folder),
        "files_removed": files,
        "blocks_dropped": blocks,
        "blocks": len(shards.rows),
        "bytes": sum(file.bytes for file in shards.manifest.files),
    }
    gone = f"{plural(files, 'file')} removed, {plural(blocks, 'block')} dropped"
    return Report(data, [f"{shards.folder}: {gone}, {len(shards.rows):,} left"])
