"""Hit rates against a set of prefixes kept by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtool.analysis.build import build_workload
from kvtool.analysis.hit_rates import hit_rates, replay_ids
from kvtool.requests import BlockIds, Request, Source

PROMPTS = st.lists(
    st.tuples(st.lists(st.integers(0, 1), max_size=12), st.integers(0, 1), st.integers(-1, 2)), max_size=20
)


def slow(prompts, block_size):
    """(saved, within, matched, blocks, means) from sets of token tuples."""
    seen, seen_by = set(), {}
    saved = within = matched = blocks = 0
    means = []
    for tokens, space, session in prompts:
        full = [tuple(tokens[:end]) for end in range(block_size, len(tokens) + 1, block_size)]
        own = seen_by.setdefault(session, set()) if session >= 0 else set()
        k = next((i for i, p in enumerate(full) if (space, p) not in seen), len(full))
        k_own = next((i for i, p in enumerate(full) if (space, p) not in own), len(full))
        cap = max(len(tokens) - 1, 0) // block_size
        saved += min(k, cap) * block_size
        within += min(k_own, cap) * block_size
        matched += k
        blocks += len(full)
        means.append(k / len(full) if full else 0)
        seen.update((space, p) for p in full)
        own.update((space, p) for p in full)
    return saved, within, matched, blocks, means


@given(PROMPTS, st.sampled_from([1, 2, 3]))
def test_replay_agrees_with_sets(prompts, block_size):
    rates = replay_ids(
        [np.array(tokens, np.uint32) for tokens, _, _ in prompts],
        block_size,
        [space for _, space, _ in prompts],
        [session for _, _, session in prompts],
    )
    saved, within, matched, blocks, means = slow(prompts, block_size)
    total = sum(len(tokens) for tokens, _, _ in prompts) or 1
    assert rates.saved_tokens == saved
    assert rates.tokens == pytest.approx(saved / total)
    assert rates.within_session_tokens == pytest.approx(within / total)
    assert rates.tokens == pytest.approx(rates.within_session_tokens + rates.across_session_tokens)
    assert rates.blocks == pytest.approx(matched / (blocks or 1))
    assert rates.request_mean == pytest.approx(sum(means) / (len(means) or 1))


def test_order_is_by_arrival():
    long, short = np.arange(4, dtype=np.uint32), np.arange(2, dtype=np.uint32)
    assert replay_ids([long, short], 1).matched.tolist() == [0, 2]
    assert replay_ids([long, short], 1, order=[1, 0]).matched.tolist() == [0, 2]
    assert replay_ids([long, short], 1, order=[1, 0]).saved.tolist() == [0, 2]
    assert replay_ids([short, short], 1).saved.tolist() == [0, 1], "the last token is always computed"


def test_trace_rates_by_hand():
    """Two requests of 6 and 6 tokens in blocks of 4, equal to the last, partial block."""
    row = BlockIds(np.array([5, 6]), 4, 6)
    requests = [Request(id=str(i), source=Source("t", i), block_ids=row) for i in range(2)]
    rates = hit_rates(build_workload(requests, None))
    assert rates.tokens == 4 / 12
    assert rates.tokens_uncapped == 6 / 12
    assert rates.blocks == 2 / 4
    assert rates.request_mean == 0.5
    assert rates.distinct_tokens == 6
