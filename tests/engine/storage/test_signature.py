"""Signed shards: what a key vouches for, what is refused and how it is named, and every commit on the way."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kvtool.analysis.build import build_workload
from kvtool.analysis.plan import PlanConfig, make_plan
from kvtool.engine.compute.load import load_model
from kvtool.engine.prewarm import PrewarmConfig, prewarm
from kvtool.engine.storage import maintenance
from kvtool.engine.storage.codec import block_bytes, load_codec
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.index import block_checksum, index_to_bytes
from kvtool.engine.storage.manifest import read_manifest, sha256
from kvtool.engine.storage.shards import open_shards
from kvtool.engine.storage.signature import load_key, sign
from kvtool.engine.storage.verify import verify
from kvtool.errors import KvtoolError
from kvtool.logs.reader import open_log

KEY, OTHER = b"0123456789abcdef", b"another key, as long"


@pytest.fixture(scope="module")
def parts(tiny_model: Path, branching_log: Path):
    model = load_model(str(tiny_model))
    workload = build_workload(open_log([str(branching_log)]), model.encoder, 16)
    shape, raw = Identity.of_model(model, 16).shape, load_codec({"codec": "raw"})
    plan = make_plan(workload, PlanConfig(), lambda depth: block_bytes(raw, shape, depth == 0), 1024)
    return plan, model


@pytest.fixture(scope="module")
def made(parts, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same shards, signed and unsigned, in three files."""
    plan, model = parts
    root = tmp_path_factory.mktemp("made")
    size = int(plan.bytes.sum()) // 3
    prewarm(plan, model, root / "signed", PrewarmConfig("raw", size, KEY))
    prewarm(plan, model, root / "plain", PrewarmConfig("raw", size))
    return root / "signed", root / "plain"


@pytest.fixture
def signed(made, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made[0], tmp_path / "signed"))


@pytest.fixture
def plain(made, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made[1], tmp_path / "plain"))


def refused(action, message: str) -> None:
    with pytest.raises(KvtoolError, match=message):
        action()


def test_a_signature_is_hmac_sha256_over_the_body_by_the_book(signed: Path) -> None:
    body = json.loads((signed / "manifest.json").read_text())
    signature, _ = body.pop("signature"), body.pop("digest")
    message = b"kvtool.shards/1 signature\0" + json.dumps(body, sort_keys=True).encode()
    inner = hashlib.sha256(bytes(b ^ 0x36 for b in KEY.ljust(64, b"\0")) + message).digest()
    assert signature == hashlib.sha256(bytes(b ^ 0x5C for b in KEY.ljust(64, b"\0")) + inner).hexdigest()


def test_nothing_but_the_manifest_differs_and_all_that_is_signed_verifies(signed: Path, plain: Path) -> None:
    for path in plain.iterdir():
        assert (path.read_bytes() == (signed / path.name).read_bytes()) == (path.name != "manifest.json")
    assert verify(signed, key=KEY) == verify(signed) == []
    open_shards(signed).prove(KEY)


def test_who_insists_on_a_key_is_told_what_is_wrong(signed: Path, plain: Path) -> None:
    refused(lambda: open_shards(plain).prove(KEY), "plain: signature: these shards are unsigned")
    refused(lambda: verify(plain, key=KEY), "plain: signature: these shards are unsigned")
    refused(lambda: open_shards(signed).prove(OTHER), "signed: signature: not made with this key")
    refused(lambda: verify(signed, key=OTHER), "signed: signature: not made with this key")


def test_a_signed_file_that_was_damaged_is_deleted_and_made_again(signed: Path, parts) -> None:
    plan, model = parts
    path = signed / "shard-00001.safetensors"
    sound = path.read_bytes()
    path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    with pytest.raises(KvtoolError) as told:
        open_shards(signed).prove(KEY)
    assert told.value.hint == "take the file from who signed it, or delete it and run prewarm again"
    path.unlink()
    prewarm(plan, model, signed, PrewarmConfig("raw", int(plan.bytes.sum()) // 3, KEY))
    open_shards(signed).prove(KEY)
    assert path.read_bytes() == sound


def test_a_forger_without_the_key_is_found_wherever_he_writes(signed: Path) -> None:
    """All digests and checksums are made right again; only the signature cannot be."""
    clean = read_manifest(signed)
    path = signed / "shard-00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    refused(lambda: open_shards(signed).prove(KEY), r"shard-00001\.safetensors: digest: not what was signed")
    rows = open_shards(signed).rows
    last = max((row for row in rows if row.shard == 1), key=lambda row: row.row)
    block = bytes(data[last.offset : last.offset + last.bytes])
    forged = replace(last, checksum=block_checksum(last.hash, block))
    index = index_to_bytes([forged if row.hash == last.hash else row for row in rows], 16)
    (signed / "index.parquet").write_bytes(index)
    files = tuple(
        replace(file, digest=sha256(bytes(data))) if file.number == 1 else file for file in clean.files
    )
    manifest = replace(clean, files=files, index_digests=(sha256(index),))
    (signed / "manifest.json").write_bytes(manifest.to_bytes())
    assert verify(signed) == [], "without a key it is sound"
    refused(lambda: verify(signed, key=KEY), "signature: not made with this key, or the manifest was changed")
    refused(lambda: open_shards(signed).prove(KEY), "signature: not made with this key")


def test_a_lost_file_of_signed_shards_is_named(signed: Path) -> None:
    (signed / "shard-00002.safetensors").unlink()
    refused(lambda: open_shards(signed).prove(KEY), r"shard-00002\.safetensors: No such file")


def test_what_changes_signed_shards_signs_anew_or_is_refused(parts, signed: Path, plain: Path) -> None:
    plan, model = parts
    size = int(plan.bytes.sum()) // 3
    before = {path.name: path.read_bytes() for path in signed.iterdir()}
    (signed / "shard-00001.safetensors").unlink()
    refused(lambda: prewarm(plan, model, signed, PrewarmConfig("raw", size)), "these shards are signed")
    refused(lambda: maintenance.collect_garbage(signed), "these shards are signed")
    refused(lambda: prewarm(plan, model, signed, PrewarmConfig("raw", size, OTHER)), "not made with this key")
    refused(lambda: prewarm(plan, model, plain, PrewarmConfig("raw", size, KEY)), "these shards are unsigned")
    prewarm(plan, model, signed, PrewarmConfig("raw", size, KEY))
    assert {path.name: path.read_bytes() for path in signed.iterdir()} == before
    assert maintenance.collect_garbage(signed, keep_bytes=size, key=KEY)[1] > 0
    assert verify(signed, key=KEY) == []


def test_merge_signs_and_does_not_launder(signed: Path, plain: Path, tmp_path: Path) -> None:
    sources = [open_shards(signed), open_shards(plain)]
    refused(lambda: maintenance.merge(sources, tmp_path / "a"), "these shards are signed")
    refused(lambda: maintenance.merge(sources, tmp_path / "b", key=OTHER), "not made with this key")
    maintenance.merge(sources, tmp_path / "c", key=KEY)
    open_shards(tmp_path / "c").prove(KEY)
    maintenance.merge([open_shards(plain)], tmp_path / "d", key=OTHER)
    open_shards(tmp_path / "d").prove(OTHER)
    maintenance.merge([open_shards(plain)], tmp_path / "e")
    assert read_manifest(tmp_path / "e").signature is None


def test_keys_are_read_from_files(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(KEY + b"\r\n")
    assert load_key(path) == KEY and sign(KEY, b"x") != sign(OTHER, b"x")
    path.write_bytes(b"short\n")
    refused(lambda: load_key(path), "--signing-key .*key: 5 bytes, 16 are needed")
    refused(lambda: load_key(tmp_path / "none"), "none: No such file")
