"""Shard directories: round trip, reproducible bytes, every kind of damage named, crash windows, upkeep."""

import json
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open

from kvtool.blocks import BlockHash, child_hash
from kvtool.engine.storage import maintenance
from kvtool.engine.storage.codec import Block, block_parts, encode_block, load_codec
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.index import BlockRow, block_checksum, index_from_bytes, index_to_bytes
from kvtool.engine.storage.layout import BlockShape
from kvtool.engine.storage.manifest import Manifest, commit, read_manifest, sha256, shard_name
from kvtool.engine.storage.outlook import Expected, Outlook
from kvtool.engine.storage.shards import BadBlock, open_shards
from kvtool.engine.storage.verify import verify
from kvtool.engine.storage.writer import Planned, write_shard
from kvtool.errors import KvtoolError

SHAPE = BlockShape.of_layers(4, "float32", [(2, 3, 3), (2, 3, 3)])
FIELDS = {"weights": "w1", "tokenizer": "t1", "chat_template": "c1", "dtype": "float32", "digest": "d1"}
IDENTITY = Identity("tiny", FIELDS, SHAPE)


def block_of(tokens: np.ndarray) -> Block:
    """Made-up keys and values that depend on the block's tokens."""
    base = torch.tensor(tokens.astype(np.float32)).reshape(4, 1, 1).expand(4, 2, 3)
    return [(base * (layer + 1), -base / (layer + 1)) for layer in range(2)]


def chain(first_token: int, blocks: int) -> list[np.ndarray]:
    """`blocks` blocks of consecutive token ids."""
    ids = np.arange(first_token, first_token + 4 * blocks, dtype=np.uint32)
    return list(ids.reshape(blocks, 4))


def write_directory(
    folder: Path, chains: list[list[np.ndarray]], codec_name: str = "raw", hits: float = 3, identity=IDENTITY
) -> Manifest:
    """One shard file per chain, straight from the writer's parts."""
    folder.mkdir()
    codec = load_codec({"codec": codec_name})
    root = identity.root()
    rows, files = [], []
    for number, blocks in enumerate(chains):
        parent, encoded = root, []
        for depth, tokens in enumerate(blocks):
            name = child_hash(parent, tokens)
            encoded.append(
                (name, parent, depth, tokens, encode_block(codec, SHAPE, block_of(tokens), depth == 0))
            )
            parent = name
        planned = [
            Planned(name, tuple(block_parts(codec, SHAPE, depth == 0))) for name, _, depth, _, _ in encoded
        ]
        with write_shard(folder / shard_name(number), planned) as writer:
            for place, (name, above, depth, tokens, data) in enumerate(encoded):
                writer.append(data)
                rows.append(
                    BlockRow(
                        name, above, depth, tokens, number, place, writer.offsets[-1], len(data), codec_name,
                        block_checksum(name, data), hits - depth * 0.5, 0.0 if codec_name == "raw" else None,
                    )
                )  # fmt: skip
        files.append(writer.file())
    manifest = Manifest(
        identity, {"": root}, {codec_name: codec.config()}, {"tokens": 8}, tuple(files), (), complete=True
    )
    return commit(folder, None, manifest, index_to_bytes(rows, 4))


class PowerCut(Exception):
    """Stands for the process ending."""


@contextmanager
def dying_at_rename(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The number-th rename does not happen, nor anything after it."""
    calls = 0
    real = Path.replace

    def rename(self: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == number:
            raise PowerCut
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", rename)
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_directory(tmp_path / "shards", [chain(0, 3), chain(100, 2)])
    return tmp_path / "shards"


def everything(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("codec", ["raw", "int8"])
def test_blocks_come_back(tmp_path: Path, codec: str) -> None:
    write_directory(tmp_path / "s", [chain(0, 3), chain(100, 2)], codec)
    assert verify(tmp_path / "s") == []
    shards = open_shards(tmp_path / "s")
    assert [row.depth for row in shards.rows] == [0, 1, 2, 0, 1]
    for row in shards.rows:
        for (keys, values), (found_keys, found_values) in zip(
            block_of(row.tokens), shards.read_block(row.hash), strict=True
        ):
            limit = 0 if codec == "raw" else float(keys.abs().max()) / 250
            assert (keys - found_keys).abs().max() <= limit and (values - found_values).abs().max() <= limit
    assert shards.rows[1].parent == shards.rows[0].hash == child_hash(IDENTITY.root(), chain(0, 1)[0])
    assert shards.rows[0].kl == (0.0 if codec == "raw" else None)
    shards.close()


def test_same_input_same_bytes_and_private(folder: Path, tmp_path: Path) -> None:
    write_directory(tmp_path / "again", [chain(0, 3), chain(100, 2)])
    assert everything(folder) == everything(tmp_path / "again")
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_any_reader_of_safetensors_and_parquet_reads_them(folder: Path) -> None:
    row = open_shards(folder).rows[1]
    with safe_open(folder / "shard-00000.safetensors", "pt") as file:
        keys = file.get_tensor(f"{row.hash.hex()}.keys")
    assert keys.shape == (2, 4, 2, 3) and torch.equal(keys[1], block_of(row.tokens)[1][0])
    table = pq.read_table(folder / "index.parquet")
    assert table["tokens"].to_pylist()[1] == [4, 5, 6, 7] and table["depth"].to_pylist() == [0, 1, 2, 0, 1]


def test_a_block_is_one_contiguous_read_and_a_chain_a_sequential_one(folder: Path) -> None:
    rows = [row for row in open_shards(folder).rows if row.shard == 0]
    assert rows[0].offset % 64 == 0
    assert [row.offset for row in rows[1:]] == [row.offset + row.bytes for row in rows[:-1]]


def test_every_flipped_byte_is_found_and_names_its_file(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        clean = path.read_bytes()
        for at in range(0, len(clean), max(len(clean) // 40, 1)):
            path.write_bytes(clean[:at] + bytes([clean[at] ^ 1]) + clean[at + 1 :])
            try:
                faults = verify(folder)
            except KvtoolError as error:
                assert path.name in error.message
            else:
                assert [fault.file for fault in faults] == [path.name], (path, at)
        path.write_bytes(clean)
    assert verify(folder) == []


def test_a_flip_in_one_block_costs_that_block_alone(folder: Path) -> None:
    bad = open_shards(folder).rows[1]
    path = folder / shard_name(bad.shard)
    data = bytearray(path.read_bytes())
    data[bad.offset + 5] ^= 0x10
    path.write_bytes(data)
    (fault,) = verify(folder)
    assert (fault.file, fault.block, fault.field) == (path.name, bad.hash, "checksum")
    shards = open_shards(folder)
    with pytest.raises(BadBlock, match="checksum") as caught:
        shards.read_block(bad.hash)
    assert caught.value.row.hash == bad.hash and caught.value.field == "checksum"
    shards.read_block(shards.rows[0].hash)
    shards.read_block(shards.rows[2].hash)


def test_truncation_is_named(folder: Path) -> None:
    path = folder / "shard-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    faults = verify(folder)
    assert [(fault.field, fault.block is None) for fault in faults] == [("bytes", True), ("bytes", False)]
    with pytest.raises(BadBlock, match="bytes: the file ends after"):
        open_shards(folder).read_block(faults[1].block)


def test_appended_bytes_are_named(folder: Path) -> None:
    with (folder / "shard-00001.safetensors").open("ab") as handle:
        handle.write(b"x")
    assert [fault.field for fault in verify(folder)] == ["bytes"]


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    (folder / "shard-00000.safetensors").unlink()
    assert [(fault.file, fault.field) for fault in verify(folder)] == [("shard-00000.safetensors", "file")]
    shards = open_shards(folder)
    with pytest.raises(BadBlock, match="file: No such file"):
        shards.read_block(shards.rows[0].hash)
    (folder / "index.parquet").unlink()
    with pytest.raises(KvtoolError, match=r"index\.parquet"):
        open_shards(folder)
    with pytest.raises(KvtoolError, match=r"no manifest\.json"):
        open_shards(tmp_path)


def test_swapped_index_is_found(folder: Path, tmp_path: Path) -> None:
    write_directory(tmp_path / "other", [chain(500, 3), chain(100, 2)])
    shutil.copy(tmp_path / "other" / "index.parquet", folder / "index.parquet")
    with pytest.raises(KvtoolError, match="digest is not the manifest's"):
        open_shards(folder)


def test_a_wrong_hash_is_found_even_where_all_digests_agree(tmp_path: Path) -> None:
    manifest = write_directory(tmp_path / "s", [chain(0, 3)])
    rows = open_shards(tmp_path / "s").rows
    forged = replace(rows[2], tokens=rows[2].tokens + np.uint32(1))
    commit(tmp_path / "s", manifest, manifest, index_to_bytes([*rows[:2], forged], 4))
    assert [(fault.block, fault.field) for fault in verify(tmp_path / "s")] == [(rows[2].hash, "hash")]


def test_a_manifest_cannot_point_outside(folder: Path) -> None:
    manifest = read_manifest(folder)
    file = replace(manifest.files[0], name="shard-../00000.safetensors")
    (folder / "manifest.json").write_bytes(replace(manifest, files=(file,)).to_bytes())
    with pytest.raises(KvtoolError, match="not a shard's name"):
        read_manifest(folder)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("files", 0, "name"), 5),
        (("codecs",), None),
        (("codecs", "raw"), 3),
        (("shape", "layers"), []),
        (("shape", "layers", 0, 1), None),
        (("shape", "layers", 0, 1), -1),
    ],
)
def test_a_manifest_of_other_types_is_an_error_even_where_its_digest_agrees(
    folder: Path, place: tuple[str | int, ...], value: object
) -> None:
    body = json.loads((folder / "manifest.json").read_text())
    del body["digest"]
    *above, last = place
    inside = body
    for step in above:
        inside = inside[step]
    assert inside[last] != value
    inside[last] = value
    body["digest"] = sha256(json.dumps(body, sort_keys=True).encode())
    (folder / "manifest.json").write_text(json.dumps(body, indent=1) + "\n")
    with pytest.raises(KvtoolError, match=r"manifest\.json"):
        open_shards(folder)


@pytest.mark.parametrize("name", ["manifest.json", "outlook.json", "reuse.json"])
def test_json_nested_without_end_is_an_error_of_its_file(folder: Path, name: str) -> None:
    (folder / name).write_text("[" * 100_000)
    if name == "manifest.json":
        with pytest.raises(KvtoolError, match=r"manifest\.json: damaged: RecursionError"):
            verify(folder)
    else:
        assert [(fault.file, fault.field) for fault in verify(folder)] == [(name, "file")]


def test_a_file_that_cannot_be_read_is_a_fault_and_the_others_are_checked(folder: Path, monkeypatch) -> None:
    data = bytearray((folder / "shard-00001.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "shard-00001.safetensors").write_bytes(data)
    real = Path.open

    def forbidden(self: Path, mode: str = "r", *rest: object, **named: object) -> object:
        if self.name == "shard-00000.safetensors":
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, mode, *rest, **named)

    monkeypatch.setattr(Path, "open", forbidden)
    first, second = verify(folder)
    assert (first.file, first.field, first.reason) == ("shard-00000.safetensors", "file", "Permission denied")
    assert (second.file, second.field) == ("shard-00001.safetensors", "checksum")


def test_who_reads_while_another_commits_gets_one_commit_or_the_other(folder: Path, monkeypatch) -> None:
    """The reader has the old manifest when index and manifest are replaced under it."""
    shards = open_shards(folder)
    rows = [replace(row, expected_hits=9.0) for row in shards.rows]

    def read_then_commit(where: Path) -> Manifest:
        found = read_manifest(where)
        monkeypatch.undo()
        commit(folder, shards.manifest, shards.manifest, index_to_bytes(rows, 4))
        return found

    monkeypatch.setattr("kvtool.engine.storage.shards.read_manifest", read_then_commit)
    assert {row.expected_hits for row in open_shards(folder).rows} == {9.0}


@pytest.mark.parametrize("name", ["outlook.json", "reuse.json"])
def test_verify_names_what_a_server_would_refuse_beside_the_blocks(folder: Path, name: str) -> None:
    (folder / name).write_text("{}")
    (fault,) = verify(folder)
    assert (fault.file, fault.block, fault.field) == (name, None, "file") and "run prewarm" in fault.reason


def test_another_schema_is_named(folder: Path) -> None:
    body = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**body, "schema": "kvtool.shards/9"}))
    with pytest.raises(KvtoolError, match=r"schema is 'kvtool\.shards/9'"):
        open_shards(folder)


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (replace(IDENTITY, model={**FIELDS, "weights": "w2"}), "weights: w1 / w2"),
        (replace(IDENTITY, model={**FIELDS, "tokenizer": "t2"}), "tokenizer: t1 / t2"),
        (replace(IDENTITY, model={**FIELDS, "chat_template": "c2"}), "chat_template: c1 / c2"),
        (replace(IDENTITY, model={**FIELDS, "dtype": "bfloat16"}), "dtype: float32 / bfloat16"),
        (replace(IDENTITY, model={**FIELDS, "digest": "d2"}), "digest: d1 / d2"),
        (replace(IDENTITY, model={**FIELDS, "rope": "{}"}), "rope: absent / {}"),
        (replace(IDENTITY, shape=replace(SHAPE, block_size=8)), "block_size: 4 / 8"),
    ],
)
def test_identities_name_what_differs(other: Identity, field: str) -> None:
    assert IDENTITY.differences(other) == [field]
    assert IDENTITY.differences(replace(IDENTITY, name="renamed")) == []


def test_roots_depend_on_all_but_the_name() -> None:
    others = [
        replace(IDENTITY, model={**FIELDS, "digest": "d2"}),
        replace(IDENTITY, shape=replace(SHAPE, block_size=8)),
    ]
    roots = {IDENTITY.root(), IDENTITY.root("acme"), *(other.root() for other in others)}
    assert len(roots) == 4
    assert replace(IDENTITY, name="renamed").root() == IDENTITY.root()


def test_a_crash_between_index_and_manifest_leaves_the_old_state(folder: Path, monkeypatch) -> None:
    manifest = read_manifest(folder)
    rows = open_shards(folder).rows
    before = [row.hash for row in rows]
    extra = replace(rows[0], shard=7, hash=BlockHash(b"x" * 16))
    index = index_to_bytes([*rows, extra], 4)
    for crash_at in (1, 2, 3):
        with dying_at_rename(crash_at, monkeypatch), pytest.raises(PowerCut):
            commit(folder, manifest, manifest, index)
        assert verify(folder) == []
        assert [row.hash for row in open_shards(folder).rows] == before
        manifest = read_manifest(folder)
    assert read_manifest(folder).index_digests != ()
    assert len(commit(folder, manifest, manifest, index).index_digests) == 1


def test_diff_says_what_differs(folder: Path, tmp_path: Path) -> None:
    write_directory(tmp_path / "other", [chain(0, 2), chain(300, 1)], "int8")
    left, right = open_shards(folder), open_shards(tmp_path / "other")
    found = maintenance.diff(left, right)
    assert found.fields == [] and found.same == 0
    assert found.changed == [row.hash for row in left.rows[:2]]
    assert found.only_left == [row.hash for row in left.rows[2:]]
    assert found.only_right == [right.rows[2].hash]
    assert maintenance.diff(left, left).same == 5


def test_merge_is_the_union(folder: Path, tmp_path: Path) -> None:
    write_directory(tmp_path / "other", [chain(0, 2), chain(300, 1)], "int8", hits=10)
    sources = [open_shards(folder), open_shards(tmp_path / "other")]
    maintenance.merge(sources, tmp_path / "merged")
    assert verify(tmp_path / "merged") == []
    merged = open_shards(tmp_path / "merged")
    assert set(merged.index) == set(sources[0].index) | set(sources[1].index)
    shared = sources[0].rows[0].hash
    assert merged.index[shared].codec == "raw" and merged.index[shared].expected_hits == 13
    for row in sources[1].rows[2:]:
        assert merged.read_bytes(merged.index[row.hash]) == sources[1].read_bytes(row)
    with pytest.raises(KvtoolError, match="there are shards already"):
        maintenance.merge(sources, tmp_path / "merged")


def test_merge_names_the_folder_of_a_bad_block(folder: Path, tmp_path: Path) -> None:
    write_directory(tmp_path / "other", [chain(300, 2)])
    bad = tmp_path / "other" / "shard-00000.safetensors"
    bad.write_bytes(bad.read_bytes()[:-1])
    sources = [open_shards(folder), open_shards(tmp_path / "other")]
    with pytest.raises(KvtoolError, match=r"/other: shard-00000\.safetensors row 1 .*: bytes: the file ends"):
        maintenance.merge(sources, tmp_path / "merged")
    maintenance.collect_garbage(tmp_path / "other")
    maintenance.merge([open_shards(folder), open_shards(tmp_path / "other")], tmp_path / "merged")
    assert verify(tmp_path / "merged") == [] and len(open_shards(tmp_path / "merged").rows) == 6


def test_shards_whose_manifest_is_a_broken_link_are_not_swept(folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").symlink_to(tmp_path / "unmounted")
    before = {path.name for path in folder.iterdir()}
    with pytest.raises(KvtoolError, match=r"no shard directory: manifest\.json"):
        maintenance.merge([open_shards(other)], folder)
    assert {path.name for path in folder.iterdir()} == before


def test_gc_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(KvtoolError, match="no manifest"):
        maintenance.collect_garbage(tmp_path / "typo")
    assert list(tmp_path.iterdir()) == []


def test_merge_goes_on_where_a_killed_one_ended(folder: Path, tmp_path: Path, monkeypatch) -> None:
    (folder / "outlook.json").write_text(Outlook({}, Expected(None, 0.5, 1.0, 2.0)).to_json())
    merged = tmp_path / "merged"
    maintenance.merge([open_shards(folder)], merged)
    expected = everything(merged)
    assert "outlook.json" in expected
    for death in range(1, len(expected) + 1):  # at each rename: what a file was being written to stays
        shutil.rmtree(merged)
        with dying_at_rename(death, monkeypatch), pytest.raises(PowerCut):
            maintenance.merge([open_shards(folder)], merged)
        (merged / ".shard-00000.safetensors.77.tmp").write_bytes(b"killed")
        (merged / "shard-00042.safetensors").write_bytes(b"of a larger merge")
        maintenance.merge([open_shards(folder)], merged)
        assert everything(merged) == expected


def test_merge_does_not_write_among_other_files(folder: Path, tmp_path: Path) -> None:
    """Neither names that are not its own, nor those that only look like them, are overwritten or deleted."""
    for name in ("notes.txt", "shard-1.safetensors", ".draft.tmp"):
        other = tmp_path / f"with {name}"
        other.mkdir()
        (other / name).write_text("mine")
        with pytest.raises(KvtoolError, match=f"not empty and no shard directory: {re.escape(name)}"):
            maintenance.merge([open_shards(folder)], other)
        assert everything(other) == {name: b"mine"}
        (folder / name).write_text("mine")
    assert maintenance.collect_garbage(folder) == (0, 0)
    assert {"notes.txt", "shard-1.safetensors", ".draft.tmp"} < set(everything(folder))


def test_merge_refuses_another_model(folder: Path, tmp_path: Path) -> None:
    other = replace(IDENTITY, model={**FIELDS, "weights": "w2", "digest": "d2"})
    write_directory(tmp_path / "other", [chain(0, 1)], identity=other)
    with pytest.raises(KvtoolError, match=r"differ in weights: w1 / w2"):
        maintenance.merge([open_shards(folder), open_shards(tmp_path / "other")], tmp_path / "merged")


def test_gc_takes_strays_and_what_builds_on_a_bad_block(folder: Path) -> None:
    (folder / "shard-00009.safetensors").write_bytes(b"stray")
    (folder / ".shard-00002.safetensors.77.tmp").write_bytes(b"crash")
    (folder / "notes.txt").write_text("mine")
    untouched = (folder / "shard-00001.safetensors").read_bytes()
    bad = open_shards(folder).rows[1]
    data = bytearray((folder / "shard-00000.safetensors").read_bytes())
    data[bad.offset] ^= 1
    (folder / "shard-00000.safetensors").write_bytes(data)
    removed, dropped = maintenance.collect_garbage(folder)
    assert (removed, dropped) == (3, 2)  # both strays and the rewritten file; the bad block and its child
    assert verify(folder) == []
    assert sorted(path.name for path in folder.iterdir()) == [
        "index.parquet", "manifest.json", "notes.txt", "shard-00001.safetensors", "shard-00002.safetensors",
    ]  # fmt: skip
    assert (folder / "shard-00001.safetensors").read_bytes() == untouched
    shards = open_shards(folder)
    assert [row.depth for row in shards.rows] == [0, 1, 0] and not shards.manifest.complete


def test_gc_to_a_budget_keeps_the_most_used_and_stays_prefix_closed(folder: Path) -> None:
    size = open_shards(folder).rows[0].bytes
    assert maintenance.collect_garbage(folder, keep_bytes=3 * size) == (2, 2)
    assert verify(folder) == []
    kept = open_shards(folder).rows
    assert sorted((row.depth, row.expected_hits) for row in kept) == [(0, 3.0), (0, 3.0), (1, 2.5)]
    assert maintenance.collect_garbage(folder, keep_bytes=3 * size) == (0, 0)


def test_gc_keeps_what_fits_where_a_later_log_knew_a_parent_less(folder: Path) -> None:
    shards = open_shards(folder)
    rows = [replace(row, expected_hits=0.5) if row.depth == 0 else row for row in shards.rows]
    commit(folder, shards.manifest, shards.manifest, index_to_bytes(rows, SHAPE.block_size))
    assert maintenance.collect_garbage(folder, keep_bytes=1 << 40) == (0, 0)
    assert len(open_shards(folder).rows) == 5


def test_gc_says_what_it_cannot_delete(folder: Path) -> None:
    (folder / "shard-00009.safetensors").mkdir()
    with pytest.raises(KvtoolError, match=r"shard-00009.safetensors: .*cannot be deleted"):
        maintenance.collect_garbage(folder)


@pytest.mark.parametrize("crash_at", range(1, 8))
def test_gc_survives_a_crash_anywhere(folder: Path, crash_at: int, monkeypatch) -> None:
    size = open_shards(folder).rows[0].bytes
    with dying_at_rename(crash_at, monkeypatch), suppress(PowerCut):
        maintenance.collect_garbage(folder, keep_bytes=3 * size)
    assert verify(folder) == []
    assert len(open_shards(folder).rows) in (3, 5)
    maintenance.collect_garbage(folder, keep_bytes=3 * size)
    assert verify(folder) == [] and len(open_shards(folder).rows) == 3
    indexed = index_from_bytes((folder / "index.parquet").read_bytes(), SHAPE.block_size, "index")
    assert len(indexed) == 3, "token ids of blocks that are gone stay in the index"
