"""The index finds blocks by hash, trusts only tokens, and stays bounded."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.blocks import BlockHash, TokenIds, hash_blocks, namespace
from kvtool.cache import index as index_module
from kvtool.cache.index import BlockIndex
from kvtool.cache.policies import POLICIES
from kvtool.cache.tiers import Tier, TieredPool

ROOT = namespace("model", 4)


def tokens(*ids: int) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    return np.array(ids, np.uint32)


def fresh(limit: int = 1000, **capacities: int) -> tuple[TieredPool, BlockIndex]:
    pool = TieredPool(POLICIES.load("lru"), **(capacities or {"device": 8}))
    return pool, BlockIndex(pool, 4, limit)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), max_size=24), max_size=8))
def test_two_prompts_share_nodes_exactly_as_far_as_they_share_full_blocks(prompts: list[list[int]]) -> None:
    _, index = fresh()
    chains = [index.chain(tokens(*prompt), ROOT) for prompt in prompts]
    for a, first in zip(prompts, chains, strict=True):
        assert len(first) == len(a) // 4
        assert [index.hash_of(node) for node in first] == list(hash_blocks(tokens(*a), 4, ROOT))
        for b, second in zip(prompts, chains, strict=True):
            same = next(
                (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
            )
            shared = [x for x, y in zip(first, second, strict=False) if x == y]
            assert len(shared) == same // 4


def test_roots_do_not_share() -> None:
    _, index = fresh()
    one, other = index.chain(tokens(1, 2, 3, 4), ROOT), index.chain(tokens(1, 2, 3, 4), namespace("other"))
    assert one != other


def test_a_collision_is_a_miss_for_it_and_all_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _, index = fresh()

    def weak(parent: BlockHash, block: "np.ndarray[tuple[int], np.dtype[np.uint32]]") -> BlockHash:
        return BlockHash(bytes([int(block.sum()) % 256]) * 16)

    monkeypatch.setattr(index_module, "child_hash", weak)
    first = index.chain(tokens(1, 2, 3, 4, 9, 9, 9, 9), ROOT)
    assert len(first) == 2
    assert index.chain(tokens(4, 3, 2, 1, 9, 9, 9, 9), ROOT) == []  # same sum, other tokens
    assert index.chain(tokens(7, 7, 7, 7, 9, 9, 9, 9), ROOT)[1:] == []  # same tokens below another parent
    assert index.collisions == 2
    assert index.chain(tokens(1, 2, 3, 4, 9, 9, 9, 9), ROOT) == first


def test_ghosts_are_forgotten_oldest_first_and_their_ids_used_again() -> None:
    pool, index = fresh(limit=8, device=4)
    chains = []
    for number in range(12):
        nodes = index.chain(tokens(*[number] * 4), ROOT)
        chains.append(nodes)
        lease = pool.acquire(nodes, 1, float(number))
        assert lease is not None
        pool.settle(lease, 0)
        pool.commit(lease, 1)
        pool.release(lease)
    pool.take_moves()
    assert index.trim([chains[0][0]]) == 12 - 6
    known = {int(index.tokens_of(node)[0]) for node in index.known()}
    assert known == {0, 7, 8, 9, 10, 11}, "resident blocks, the referred one, and the latest ghosts stay"
    before = pool.device.nodes
    reused = index.chain(tokens(1, 1, 1, 1), ROOT)[0]
    assert pool.device.nodes == before and pool.device.state.touches[reused] == 0
    assert index.chain(tokens(0, 0, 0, 0), ROOT) == chains[0]
    pool.check()


def test_ancestors_of_what_stays_stay() -> None:
    _, index = fresh(limit=4, device=8)
    deep = index.chain(tokens(*range(20)), ROOT)
    for number in range(10):
        index.chain(tokens(*[100 + number] * 4), ROOT)
    index.trim([deep[-1]])
    assert index.chain(tokens(*range(20)), ROOT) == deep
    assert set(deep) <= set(index.known())


def test_new_blocks_are_looked_up_in_the_shards() -> None:
    pool = TieredPool(POLICIES.load("lru"), device=8)
    stored = list(hash_blocks(tokens(*range(8)), 4, ROOT))
    index = BlockIndex(pool, 4, 100, lambda block, _: stored.index(block) if block in stored else -1)
    nodes = index.chain(tokens(*range(12)), ROOT)
    assert pool.locate(nodes) == [Tier.SHARDS, Tier.SHARDS]
    lease = pool.acquire(nodes, 3, 0.0)
    assert lease is not None and [move.source_slot for move in lease.loads] == [0, 1]


class Announced:
    """Public blocks: the chains of some prompts."""

    root = namespace("public")

    def __init__(self, prompts: list[TokenIds]) -> None:
        self.blocks = {
            block: prompt[4 * place : 4 * place + 4]
            for prompt in prompts
            for place, block in enumerate(hash_blocks(prompt, 4, self.root))
        }

    def has(self, block: BlockHash, tokens: TokenIds) -> bool:
        return block in self.blocks and np.array_equal(self.blocks[block], tokens)


KINDS = st.lists(st.integers(0, 1), max_size=5)
"""A prompt by its blocks: four equal tokens each."""


@settings(max_examples=200, deadline=None)
@given(
    announced=st.lists(KINDS, max_size=3),
    prompts=st.lists(st.tuples(st.sampled_from("abp"), KINDS, st.integers(0, 6)), max_size=8),
)
def test_tenants_share_leading_public_blocks_of_their_heads_and_nothing_else(
    announced: list[list[int]], prompts: list[tuple[str, list[int], int]]
) -> None:
    """A block is its tokens, all before them, and the owner of each: everybody or one tenant."""
    _, index = fresh(limit=10_000, device=8)
    index.public = Announced([np.repeat(np.array(kinds, np.uint32), 4) for kinds in announced])
    shared = {tuple(kinds[:n]) for kinds in announced for n in range(1, len(kinds) + 1)}
    nodes_of: dict[tuple[tuple[str, int], ...], int] = {}
    for tenant, kinds, head in prompts:
        root = Announced.root if tenant == "p" else namespace(tenant)
        nodes = index.chain(np.repeat(np.array(kinds, np.uint32), 4), root, head)
        assert len(nodes) == len(kinds)
        owners: list[str] = []
        for place, node in enumerate(nodes):
            public = place < head and tuple(kinds[: place + 1]) in shared and set(owners) <= {"p"}
            owners.append("p" if public else tenant)
            identity = tuple(zip(owners, kinds[: place + 1], strict=True))
            assert nodes_of.setdefault(identity, node) == node
            assert index.root_of(node) == (Announced.root if owners[-1] == "p" else root)
    assert len(set(nodes_of.values())) == len(nodes_of), "what differs is apart"
