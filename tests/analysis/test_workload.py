"""The trie and its columns against plain dictionaries of token tuples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtool.analysis.build import WorkloadBuilder, build_workload
from kvtool.analysis.runs import runs_of
from kvtool.analysis.trie import BlockTrie
from kvtool.analysis.workload import Workload
from kvtool.blocks import hash_blocks
from kvtool.errors import KvtoolError
from kvtool.requests import BlockIds, Request, Source

PROMPTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 1), max_size=20),
        st.sampled_from(["a", "b"]),
        st.sampled_from([None, "s", "t"]),
        st.one_of(st.none(), st.integers(0, 5)),
    ),
    max_size=25,
)


def request(index, tokens, model="m", session=None, arrival=None, tenant=None):
    return Request(
        id=f"r{index}",
        source=Source("log.jsonl", index + 1),
        arrival=arrival,
        session=session,
        tenant=tenant,
        model=model,
        token_ids=np.array(tokens, np.uint32),
    )


class Ids:
    """Stands in for an encoder: prompts are token ids already."""

    fingerprint = "ids"

    def encode(self, requests):
        return [each.token_ids for each in requests]


def build(prompts, block_size, **options) -> Workload:
    requests = [
        request(index, tokens, model, session, arrival)
        for index, (tokens, model, session, arrival) in enumerate(prompts)
    ]
    return build_workload(requests, Ids(), block_size, **options)


def coarser(workload, block_size) -> Workload:
    return runs_of(workload).coarser(block_size).unfolded()


def prefixes(tokens, block_size):
    return [tuple(tokens[: end + block_size]) for end in range(0, len(tokens) - block_size + 1, block_size)]


@given(PROMPTS, st.sampled_from([1, 2, 3]))
def test_nodes_are_the_distinct_prefixes(prompts, block_size):
    workload = build(prompts, block_size)
    distinct = {(model, prefix) for tokens, model, _, _ in prompts for prefix in prefixes(tokens, block_size)}
    assert workload.distinct_blocks == len(distinct)
    rows = workload.meta["row"].to_pylist()
    for index, row in enumerate(rows):
        tokens, model, session, arrival = prompts[row - 1]
        nodes = workload.nodes[workload.offsets[index] : workload.offsets[index + 1]].tolist()
        assert len(nodes) == len(tokens) // block_size
        for node, prefix in zip(nodes, prefixes(tokens, block_size), strict=True):
            assert tuple(workload.prefix_of(node).tolist()) == prefix
            assert workload.depth[node] == len(prefix) // block_size - 1
            assert workload.spaces[workload.node_space[node]] == (model, None)
        assert workload.prompt_tokens[index] == len(tokens)
        assert workload.arrival[index] == (-1 if arrival is None else arrival)
        name = None if workload.session[index] < 0 else workload.session_names[workload.session[index]]
        assert name == session


@given(PROMPTS, st.sampled_from([1, 2]), st.sampled_from([2, 3, 4]))
def test_coarser_equals_building_anew(prompts, base, factor):
    coarse, fresh = coarser(build(prompts, base), base * factor), build(prompts, base * factor)
    assert coarse.distinct_blocks == fresh.distinct_blocks
    assert (coarse.offsets == fresh.offsets).all()
    of_coarse = [tuple(coarse.prefix_of(node).tolist()) for node in coarse.nodes]
    assert of_coarse == [tuple(fresh.prefix_of(node).tolist()) for node in fresh.nodes]
    assert (coarse.parent < np.arange(coarse.distinct_blocks)).all()
    assert {bytes(row) for row in coarse.hashes} == {bytes(row) for row in fresh.hashes}


def test_arrival_orders_and_unknown_times_stay_behind_their_predecessor():
    workload = build([([1], "m", None, 5), ([2], "m", None, None), ([3], "m", None, 1)], 1)
    assert workload.meta["id"].to_pylist() == ["r2", "r0", "r1"]
    assert workload.clock.tolist() == [0.0, 4e-6, 4e-6]


def test_without_times_the_clock_counts_requests():
    assert build([([1], "m", None, None)] * 3, 1).clock.tolist() == [0, 1, 2]


def test_tenants_split_unless_shared():
    requests = [request(0, [1, 2], tenant="x"), request(1, [1, 2], tenant="y")]
    assert build_workload(requests, Ids(), 1).distinct_blocks == 4
    assert build_workload(requests, Ids(), 1, share_tenants=True).distinct_blocks == 2


def test_hashes_chain_from_the_space_and_match_the_hasher():
    workload = build([([1, 2, 3, 4], "a", None, None), ([1, 2, 3, 4], "b", None, None)], 2)
    assert len({bytes(row) for row in workload.hashes}) == 4
    for node in range(4):
        assert workload.hash_of(node) == bytes(workload.hashes[node])
    root = workload.root(0)
    expected = list(hash_blocks(np.array([1, 2, 3, 4], np.uint32), 2, root))
    assert [bytes(workload.hashes[node]) for node in workload.nodes[:2]] == expected


def trace(ids, tokens, block_size=4, row=1):
    return Request(
        id="t",
        source=Source("trace.jsonl", row),
        block_ids=BlockIds(np.array(ids, np.int64), block_size, tokens),
    )


def test_block_ids_keep_their_partial_last_block():
    workload = build_workload([trace([0, 99], 6), trace([0, 2**40, 7], 12)], None)
    assert workload.ready_made and workload.block_size == 4
    assert workload.partial.tolist() == [True, False]
    assert workload.nodes.tolist() == [0, 1, 0, 2, 3]
    assert coarser(workload, 8).lengths.tolist() == [0, 1], (
        "two full blocks make one; a partial one makes none"
    )


def test_kinds_and_block_sizes_do_not_mix():
    with pytest.raises(KvtoolError, match=r"trace.jsonl, row 9: blocks of 8 tokens after blocks of 4"):
        build_workload([trace([1], 4), trace([1], 8, 8, row=9)], None)
    with pytest.raises(KvtoolError, match="block ids and token prompts"):
        build_workload([request(0, [1, 2]), trace([1], 4)], Ids())


def test_equal_hints_are_told_apart_by_content():
    """Many one-word blocks below one parent: every probe chain must compare words, not hashes."""
    trie = BlockTrie(1, runs=4)
    words = np.random.default_rng(0).permutation(5000).astype(np.uint32)
    offsets = np.arange(5001, dtype=np.int64)
    leaves = trie.insert(words, offsets, np.zeros(5000, np.int32))
    assert len(set(leaves.tolist())) == 5000
    trie._hash[:] = 0  # pretend that all collide
    trie._table[:] = -1
    trie.size = trie.blocks = 0
    again = trie.insert(words[:50].repeat(2), np.arange(101, dtype=np.int64), np.zeros(100, np.int32))
    assert again.tolist() == np.arange(50).repeat(2).tolist()


def test_an_empty_log_is_an_empty_workload():
    workload = WorkloadBuilder(8, "x").finish().unfolded()
    assert workload.requests == workload.distinct_blocks == 0
    assert workload.nodes.tolist() == []
