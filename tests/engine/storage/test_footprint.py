"""What is planned for headers, index and manifest is never less than what they take."""

from pathlib import Path

import numpy as np
import pytest

from kvtool.engine.storage.codec import BlockCodec, load_codec, stored_parts
from kvtool.engine.storage.codecs import CODECS
from kvtool.engine.storage.footprint import beside_block, beside_blocks
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.index import BlockRow, index_to_bytes
from kvtool.engine.storage.layout import BlockShape
from kvtool.engine.storage.manifest import Manifest, ShardFile, commit
from kvtool.engine.storage.writer import Planned, shard_header

LAYERS = 6
TENANTS = ["", "acme", "a much longer name with \u00fcmlauts " * 9]
MIXED = load_codec({"codec": "mixed", "layers": ["int4", "int5", "int6"] * (LAYERS // 3)})
EVERY = [*(load_codec({"codec": name}) for name in CODECS.names()), MIXED]


@pytest.mark.parametrize("codec", EVERY, ids=lambda codec: codec.name)
@pytest.mark.parametrize("size", [16, 256])
@pytest.mark.parametrize("blocks", [1, 700])
def test_a_folder_takes_no_more_than_planned(
    tmp_path: Path, codec: BlockCodec, size: int, blocks: int
) -> None:
    """Files of one block each or of hundreds, every number as long as it can be, nothing that repeats."""
    shape = BlockShape.of_layers(size, "bfloat16", [(8, 128, 128)] * LAYERS)
    random = np.random.default_rng(size)
    rows, files, taken, planned = [], [], 0, 0
    while len(rows) < blocks:
        first = not rows
        block = Planned(random.bytes(16), tuple(stored_parts(codec, shape, first, 10**6)))
        planned += block.nbytes + beside_block(codec, shape, first)
        taken += block.nbytes
        rows.append(
            BlockRow(
                hash=block.hash,
                parent=random.bytes(16),
                depth=len(rows),
                tokens=random.integers(0, 1 << 32, size, np.uint32),
                shard=0,
                row=len(rows),
                offset=10**9 + len(rows),
                bytes=block.nbytes,
                codec=codec.name,
                checksum=random.bytes(16).hex(),
                expected_hits=float(random.random()),
                kl=float(random.random()),
            )
        )
        files.append(block)
    taken += len(shard_header(files))
    identity = Identity("a model", {"weights": "w" * 64, "tokenizer": "t" * 64, "digest": "d" * 64}, shape)
    roots = {tenant: identity.root(tenant) for tenant in TENANTS}
    entry = ShardFile("shard-00000.safetensors", 1 << 30, blocks, "sha256:" + "0" * 64)
    manifest = Manifest(identity, roots, {codec.name: codec.config()}, {}, (entry,), (), complete=True)
    commit(tmp_path, None, manifest, index_to_bytes(rows, size), None)
    taken += sum(path.stat().st_size for path in tmp_path.iterdir())
    assert taken <= planned + beside_blocks(planned, TENANTS)
