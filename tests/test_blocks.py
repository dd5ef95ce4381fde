"""Block identity: chaining, namespaces, and the golden digests that shards on disk depend on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtool.blocks import child_hash, fingerprint, hash_blocks, namespace, reusable_blocks

ids = st.lists(st.integers(0, 2**32 - 1), max_size=80).map(lambda values: np.array(values, np.uint32))


def test_golden_digests() -> None:
    """These bytes are in shards that users keep: a change here makes every one of them useless."""
    root = namespace("model", "tokenizer", 4, "tenant")
    assert root.hex() == GOLDEN["root"]
    assert [block.hex() for block in hash_blocks(np.arange(10, dtype=np.uint32), 4, root)] == GOLDEN["blocks"]
    assert fingerprint(b"a", b"bc") == GOLDEN["fingerprint"]


GOLDEN = {
    "root": "480c25f1a4dc54ea756faedb7d66d2d2",
    "blocks": ["d4b4e73b331975371ba68f0b5c68111e", "c26a6afdcfddf7c6b35f5cfa57f0512a"],
    "fingerprint": "f310f4d71be93bc46456c91685adede6",
}


def test_namespace_parts_do_not_run_together() -> None:
    assert namespace("ab", "c") != namespace("a", "bc")
    assert namespace("a", 1) != namespace("a1")
    assert fingerprint(b"ab", b"c") != fingerprint(b"a", b"bc")


@given(ids, st.integers(1, 9))
def test_only_full_blocks_and_each_chains_its_parent(tokens: np.ndarray, block_size: int) -> None:
    root = namespace("m")
    hashes = list(hash_blocks(tokens, block_size, root))
    assert len(hashes) == len(tokens) // block_size
    parent = root
    for number, block in enumerate(hashes):
        parent = child_hash(parent, tokens[number * block_size : (number + 1) * block_size])
        assert block == parent and len(block) == 16


@given(ids.filter(lambda tokens: len(tokens) >= 4), st.data())
def test_changing_one_token_changes_its_block_and_all_after_it(
    tokens: np.ndarray, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(tokens) // 4 * 4 - 1))
    changed = tokens.copy()
    changed[at] ^= 1
    before, after = (list(hash_blocks(t, 4, namespace("m"))) for t in (tokens, changed))
    assert [a == b for a, b in zip(before, after, strict=True)] == [n < at // 4 for n in range(len(before))]


def test_byte_order_and_memory_layout_do_not_matter() -> None:
    tokens = np.arange(64, dtype=np.uint32)
    strided = np.repeat(tokens, 2)[::2]
    big_endian = tokens.astype(">u4")
    root = namespace("m")
    expected = list(hash_blocks(tokens, 8, root))
    assert list(hash_blocks(strided, 8, root)) == expected
    assert list(hash_blocks(big_endian, 8, root)) == expected


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 0), (32, 0), (33, 1), (64, 1), (65, 2), (96, 2), (97, 3)]
)
def test_the_last_token_is_never_reusable(tokens: int, blocks: int) -> None:
    assert reusable_blocks(tokens, 32) == blocks
