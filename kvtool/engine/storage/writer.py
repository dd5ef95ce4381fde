"""Writing one shard file: a safetensors header that is known beforehand, then blocks as they come."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kvtool.blocks import BlockHash
from kvtool.engine.storage.files import private_stream
from kvtool.engine.storage.layout import Part
from kvtool.engine.storage.manifest import ShardFile

ALIGNMENT = 64
"""The first block begins at a multiple of this; the header is padded with spaces, as safetensors allows."""

FORMAT = "kvtool.shard/2"


@dataclass(frozen=True, slots=True)
class Planned:
    """A block that will go into a shard file, and the arrays that it will consist of."""

    hash: BlockHash
    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        """Stored size."""
        return sum(part.nbytes for part in self.parts)


def shard_header(blocks: Sequence[Planned]) -> bytes:
    """Length and JSON header of a safetensors file whose tensors are `<hash>.<part>`, block after block.

    All arrays of one block stand together, so a block is one contiguous read and blocks in the order of
    a chain are one sequential read.
    """
    entries: dict[str, object] = {"__metadata__": {"format": FORMAT}}
    at = 0
    for block in blocks:
        for part in block.parts:
            entries[f"{block.hash.hex()}.{part.name}"] = entry(part, at)
            at += part.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def entry(part: Part, at: int) -> dict[str, object]:
    """What the header says of an array that begins at `at`."""
    return {"dtype": part.dtype, "shape": list(part.shape), "data_offsets": [at, at + part.nbytes]}


@dataclass(slots=True)
class ShardWriter:
    """Takes the encoded blocks in the planned order. `offsets` are where they begin in the file."""

    path: Path
    blocks: Sequence[Planned]
    write: Callable[[bytes | bytearray], None]
    offsets: list[int] = field(default_factory=list)
    size: int = 0
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def append(self, data: bytes | bytearray) -> None:
        """The next block's bytes."""
        assert len(data) == self.blocks[len(self.offsets)].nbytes, "a block of another size than planned"
        self.offsets.append(self.size)
        self.put(data)

    def put(self, data: bytes | bytearray) -> None:
        """Bytes that are no block: the header."""
        self.write(data)
        self.digest.update(data)
        self.size += len(data)

    def file(self) -> ShardFile:
        """The manifest's entry, once the file is complete."""
        assert len(self.offsets) == len(self.blocks), "a shard file was closed before its last block"
        return ShardFile(self.path.name, self.size, len(self.blocks), "sha256:" + self.digest.hexdigest())


@contextmanager
def write_shard(path: Path, blocks: Sequence[Planned]) -> Iterator[ShardWriter]:
    """Stream a shard file of exactly `blocks` into place; nothing appears if the context fails."""
    with private_stream(path) as write:
        writer = ShardWriter(path, blocks, write)
        writer.put(shard_header(blocks))
        yield writer
        writer.file()
