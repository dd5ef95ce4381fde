"""Hit rates of an unbounded cache: what prefix sharing is worth at best, request by request.

Replay in order of arrival, cold start. A request's matched blocks are its longest prefix that an
earlier request of the same space had; the last prompt token is always computed, so at most
(N - 1) // block_size blocks of an N-token prompt count.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvtool.analysis.trie import BlockTrie
from kvtool.analysis.workload import PromptTree
from kvtool.blocks import TokenIds
from kvtool.compiling import njit


@dataclass(frozen=True)
class HitRates:
    """Rates are ratios of sums, `request_mean` alone is a mean of ratios.

    tokens: reusable matched tokens / prompt tokens; within_session_tokens + across_session_tokens make
    it up (a block that the session itself had before is within). tokens_uncapped also counts a fully
    matched prompt, a trace's partial last block included. blocks: matched / all blocks.
    matched: blocks per request, saved: reusable tokens per request, int64 [r].
    """

    tokens: float
    blocks: float
    request_mean: float
    tokens_uncapped: float
    within_session_tokens: float
    across_session_tokens: float
    prompt_tokens: int
    saved_tokens: int
    distinct_tokens: int
    matched: NDArray[np.int64]
    saved: NDArray[np.int64]


def hit_rates(workload: PromptTree) -> HitRates:
    """Unbounded replay of `workload`."""
    return _rates(
        workload.leaf,
        workload.parent,
        workload.depth,
        workload.lengths,
        workload.prompt_tokens,
        workload.session,
        workload.block_size,
    )


def replay_ids(
    prompts: Sequence[TokenIds],
    block_size: int,
    spaces: Sequence[int] | None = None,
    sessions: Sequence[int] | None = None,
    order: Sequence[int] | None = None,
) -> HitRates:
    """Hit rates of bare token ids, for pricing edited prompts without building a workload.

    spaces: prompts of different numbers never share; sessions: -1 for none; order: indices of the
    prompts by arrival. All default to one space, no sessions, the order given; per-request arrays of
    the result are in order of arrival.
    """
    turns = np.arange(len(prompts)) if order is None else np.asarray(order, np.int64)
    ordered = [prompts[turn] for turn in turns]
    counts = np.array([len(prompt) for prompt in ordered], np.int64)
    trie = BlockTrie(block_size)
    leaf = trie.insert(
        np.ascontiguousarray(np.concatenate([np.empty(0, np.uint32), *ordered]), np.uint32),
        np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
        np.zeros(len(ordered), np.int32) if spaces is None else np.asarray(spaces, np.int32)[turns],
    )
    session = (
        np.full(len(ordered), -1, np.int32) if sessions is None else np.asarray(sessions, np.int32)[turns]
    )
    parent = np.maximum(trie.link, -1)
    return _rates(leaf, parent, trie.depth, counts // block_size, counts, session, block_size)


def matched_blocks(workload: PromptTree) -> NDArray[np.int64]:
    """Matched blocks of each request, int64 [r]."""
    matched = np.empty(workload.requests, np.int64)
    _match(workload.leaf, workload.parent, workload.depth, matched)
    return matched


def capped(blocks: NDArray[np.int64], prompt_tokens: NDArray[np.int64], block_size: int) -> NDArray[np.int64]:
    """Tokens that `blocks` matched blocks save: full blocks, and never the last token, int64 [r]."""
    reusable: NDArray[np.int64] = np.maximum(prompt_tokens - 1, 0) // block_size
    return np.minimum(blocks, reusable) * block_size


def ratio(part: float, whole: float) -> float:
    """part / whole; 0 of nothing is 0."""
    return float(part / whole) if whole else 0.0


def _rates(
    leaf: NDArray[np.int32],
    parent: NDArray[np.int32],
    depth: NDArray[np.int32],
    lengths: NDArray[np.int64],
    prompt_tokens: NDArray[np.int64],
    session: NDArray[np.int32],
    block_size: int,
) -> HitRates:
    matched, own = np.empty(len(leaf), np.int64), np.zeros(len(leaf), np.int64)
    _match(leaf, parent, depth, matched)
    by_session = np.argsort(session, kind="stable")
    with_session = by_session[session[by_session] >= 0]
    _match_own(leaf, parent, depth, session, with_session, own)
    saved = capped(matched, prompt_tokens, block_size)
    within = capped(own, prompt_tokens, block_size)
    uncapped = np.minimum(matched * block_size, prompt_tokens)
    total = int(prompt_tokens.sum())
    return HitRates(
        tokens=ratio(saved.sum(), total),
        blocks=ratio(matched.sum(), lengths.sum()),
        request_mean=ratio((matched / np.maximum(lengths, 1)).sum(), len(leaf)),
        tokens_uncapped=ratio(uncapped.sum(), total),
        within_session_tokens=ratio(within.sum(), total),
        across_session_tokens=ratio((saved - within).sum(), total),
        prompt_tokens=total,
        saved_tokens=int(saved.sum()),
        distinct_tokens=total - int(uncapped.sum()),
        matched=matched,
        saved=saved,
    )


@njit(types.void(types.int32[::1], types.int32[::1], types.int32[::1], types.int64[::1]), cache=True)
def _match(leaf: Any, parent: Any, depth: Any, matched: Any) -> None:
    """Climb from each leaf to the first known node; each node is made known once."""
    known = np.zeros(parent.size, np.bool_)
    for request in range(leaf.size):
        node = leaf[request]
        while node >= 0 and not known[node]:
            known[node] = True
            node = parent[node]
        matched[request] = depth[node] + 1 if node >= 0 else 0


@njit(
    types.void(
        types.int32[::1],
        types.int32[::1],
        types.int32[::1],
        types.int32[::1],
        types.int64[::1],
        types.int64[::1],
    ),
    cache=True,
)
def _match_own(leaf: Any, parent: Any, depth: Any, session: Any, order: Any, matched: Any) -> None:
    """As _match, but only against the same session; `order` lists each session's requests together."""
    owner = np.full(parent.size, -1, np.int32)
    for at in range(order.size):
        request = order[at]
        node = leaf[request]
        while node >= 0 and owner[node] != session[request]:
            owner[node] = session[request]
            node = parent[node]
        matched[request] = depth[node] + 1 if node >= 0 else 0
