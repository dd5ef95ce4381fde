"""The four hooks, as an engine of somebody else would use them."""

import doctest
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.cache import prefix_cache
from kvtool.cache.prefix_cache import PrefixCache

GUIDE = Path(__file__).resolve().parents[2] / "docs/how-to/cache-in-your-engine.md"


def test_the_examples_in_the_documentation_run() -> None:
    found = [doctest.testmod(prefix_cache), doctest.testfile(str(GUIDE), module_relative=False)]
    assert [one.failed for one in found] == [0, 0]
    assert all(one.attempted > 5 for one in found)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=20), max_size=20),
    st.integers(6, 12),
    st.integers(0, 6),
)
def test_a_toy_engine_always_finds_its_own_tokens_in_the_slots(
    prompts: list[list[int]], blocks: int, host_blocks: int
) -> None:
    cache = PrefixCache(blocks, 4, "toy", host_blocks=host_blocks)
    device: dict[int, list[int]] = {}
    host: dict[int, list[int]] = {}
    for now, ids in enumerate(prompts):
        tokens = np.array(ids, np.uint32)
        prompt = cache.split(tokens)
        promised = cache.query(prompt)
        table = cache.lease(prompt, float(now))
        assert table is not None, "one request at a time, and the pool holds the longest"
        for move in cache.moves():
            host[move.target_slot] = device[move.source_slot]
        if table.loads:
            for move in table.loads:
                device[move.target_slot] = host[move.source_slot]
            cache.loaded(table, len(table.loads))
        assert table.cached == promised <= max(len(ids) - 1, 0)
        for at in range(0, len(ids), 4):
            if at < table.cached:
                assert device[table.slots[at // 4]] == ids[at : at + 4]
            device[table.slots[at // 4]] = ids[at : at + 4]
        cache.commit(table, len(ids))
        cache.release(table)
        cache.check()


def test_tenants_and_models_do_not_share() -> None:
    cache = PrefixCache(8, 4, "m")
    tokens = np.arange(9, dtype=np.uint32)
    table = cache.lease(cache.split(tokens, tenant="red"), 0.0)
    assert table is not None
    cache.commit(table, 9)
    cache.release(table)
    assert cache.query(cache.split(tokens, tenant="blue")) == 0
    assert cache.query(cache.split(tokens, tenant="red")) == 8


def test_no_room_is_none_and_nothing_is_lost() -> None:
    cache = PrefixCache(3, 4, "m")
    held = cache.lease(cache.split(np.arange(9, dtype=np.uint32)), 0.0)
    assert held is not None
    assert cache.lease(cache.split(np.arange(100, 105, dtype=np.uint32)), 1.0) is None
    cache.commit(held, 9)
    cache.release(held)
    assert cache.lease(cache.split(np.arange(100, 105, dtype=np.uint32)), 2.0) is not None
    cache.check()
