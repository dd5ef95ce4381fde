"""manifest.json: the root of truth of a shard directory. What it does not list does not exist."""

import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvtool.blocks import BlockHash
from kvtool.engine.storage.files import write_private
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.signature import sign
from kvtool.errors import KvtoolError

SCHEMA = "kvtool.shards/2"
MANIFEST = "manifest.json"
INDEX = "index.parquet"


@dataclass(frozen=True, slots=True)
class ShardFile:
    """One shard-*.safetensors: its size in bytes, its blocks, and sha256 over all of its bytes."""

    name: str
    bytes: int
    rows: int
    digest: str

    @property
    def number(self) -> int:
        """The number in its name, which the index's column `shard` holds."""
        return int(self.name.removeprefix("shard-").removesuffix(".safetensors"))


@dataclass(frozen=True, slots=True)
class Manifest:
    """roots: tenant -> root of its hash chains. codecs: the name used in the index -> codec config.

    chunking: how prompts were cut into forwards (see engine/prewarm.py), None for merged shards that
    differ. complete: every block of the plan is here. index_digests: sha256 that index.parquet may have;
    two while a commit is under way, see `commit`. signature: over all of this, None if nobody signed.
    """

    identity: Identity
    roots: dict[str, BlockHash]
    codecs: dict[str, dict[str, Any]]
    chunking: dict[str, Any] | None
    files: tuple[ShardFile, ...]
    index_digests: tuple[str, ...]
    complete: bool
    signature: str | None = None

    @property
    def rows(self) -> int:
        """Blocks in all listed files."""
        return sum(file.rows for file in self.files)

    def to_bytes(self) -> bytes:
        """Canonical JSON that ends with a digest of itself, so that any changed byte is found."""
        body = self._body()
        if self.signature is not None:
            body["signature"] = self.signature
        body["digest"] = sha256(json.dumps(body, sort_keys=True).encode())
        return (json.dumps(body, indent=1, sort_keys=False) + "\n").encode()

    def signed_bytes(self) -> bytes:
        """What a signature is made over: everything but itself and the digest."""
        return json.dumps(self._body(), sort_keys=True).encode()

    def signed(self, key: bytes | None) -> "Manifest":
        """The same with a signature by `key`, or with none."""
        return replace(self, signature=None if key is None else sign(key, self.signed_bytes()))

    def _body(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            **self.identity.to_json(),
            "namespaces": [
                {"tenant": tenant, "root": root.hex()} for tenant, root in sorted(self.roots.items())
            ],
            "codecs": self.codecs,
            "chunking": self.chunking,
            "complete": self.complete,
            "files": [
                {"name": file.name, "bytes": file.bytes, "rows": file.rows, "digest": file.digest}
                for file in self.files
            ],
            "index": {"name": INDEX, "digests": list(self.index_digests)},
        }


def sha256(data: bytes) -> str:
    """`sha256:` and 64 hex digits."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of `folder`. KvtoolError when it is absent, of another schema, or not what was written."""
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise KvtoolError(
            f"{folder}: no {MANIFEST}", "not a shard directory, or none is finished yet"
        ) from None
    except OSError as error:
        raise KvtoolError(f"{path}: {error.strerror}") from error
    hint = "restore the file, or delete the directory and run prewarm again"
    try:
        body = json.loads(data)
        if body["schema"] != SCHEMA:
            raise KvtoolError(f"{path}: schema is {body['schema']!r}, not {SCHEMA}", "use a matching kvtool")
        manifest = Manifest(
            identity=Identity.from_json(body),
            roots={row["tenant"]: BlockHash(bytes.fromhex(row["root"])) for row in body["namespaces"]},
            codecs={name: dict(config) for name, config in body["codecs"].items()},
            chunking=body["chunking"],
            files=tuple(ShardFile(**row) for row in body["files"]),
            index_digests=tuple(body["index"]["digests"]),
            complete=body["complete"],
            signature=body.get("signature"),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise KvtoolError(f"{path}: damaged: {type(error).__name__} {error}", hint) from error
    if manifest.to_bytes() != data:
        raise KvtoolError(f"{path}: damaged: its digest does not match", hint)
    for file in manifest.files:  # a name is joined to the folder: nothing may point outside
        if not re.fullmatch(r"shard-\d{5,}\.safetensors", str(file.name)):
            raise KvtoolError(f"{path}: files: {file.name!r} is not a shard's name", hint)
    return manifest


def shard_name(number: int) -> str:
    """shard-00000.safetensors and so on."""
    return f"shard-{number:05d}.safetensors"


def commit(
    folder: Path, old: Manifest | None, new: Manifest, index: bytes, key: bytes | None = None
) -> Manifest:
    """Replace index and manifest so that a crash at any moment leaves a directory that verifies.

    The shard files that `new` lists are already in place. Between the two renames the old manifest must
    accept both indexes, so it is first written anew with both digests. Rows of files that a manifest
    does not list are ignored. `key` signs every manifest on the way.
    """
    digest = sha256(index)
    if old is not None and old.index_digests != (digest,):
        both = replace(old, index_digests=tuple(dict.fromkeys((*old.index_digests, digest))))
        write_private(folder / MANIFEST, both.signed(key).to_bytes())
    write_private(folder / INDEX, index)
    new = replace(new, index_digests=(digest,)).signed(key)
    write_private(folder / MANIFEST, new.to_bytes())
    return new
