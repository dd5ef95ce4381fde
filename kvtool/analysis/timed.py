"""Replay in time: requests overlap, a block can be used once its prefill has ended, outputs stay.

As the runtime works: a request holds its blocks from its arrival until its last token; what it computes
is published when its prefill ends, its generated blocks when it finishes. Only full blocks take part.
When every block is held, a request runs on without keeping the rest of its own.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from kvtool.analysis.replay import Schedule, session_bits, staged
from kvtool.analysis.resident import Resident
from kvtool.analysis.workload import Workload
from kvtool.cache.aging import conclude, observe
from kvtool.cache.core import (
    HELD,
    NODES,
    STATE,
    commit,
    compiled,
    free_slot,
    match,
    pin,
    take_slot,
    touch,
    unpin,
)
from kvtool.cache.policy import KEY_TYPE, Policy

BYPASSED, MOST_HELD, RUNNING = 0, 1, 2
"""What a replay counts: requests that could not keep all, most blocks held, requests that run."""


@dataclass(frozen=True, slots=True)
class TimedConfig:
    """prefill_rate, decode_rate: tokens a second of one request. outputs: generated tokens stay cached for
    the session's next turn, as far as its prompt shows them again. ttl, admit: see `replay`; what is not
    admitted takes its slots while the request runs."""

    prefill_rate: float = np.inf
    decode_rate: float = np.inf
    outputs: bool = False
    ttl: float | None = None
    admit: int = 1


@dataclass(frozen=True)
class Timed:
    """matched: blocks found by each request, int64 [r]; bypassed: requests that could not keep all of
    their blocks; most_held: most blocks held at once."""

    matched: NDArray[np.int64]
    bypassed: int
    most_held: int


def replay_timed(
    workload: Workload,
    policy: Policy | Schedule,
    capacity: int,
    config: TimedConfig,
    resident: Resident | None = None,
    bits: NDArray[np.uint64] | None = None,
) -> Timed:
    """Replay `workload` at its own arrival times with a cache of `capacity` blocks, `resident` at first."""
    nodes, offsets, prompts = held_blocks(workload, config.outputs)
    matched = np.zeros(workload.requests, np.int64)
    counts = np.zeros(3, np.int64)
    bits = session_bits(workload) if bits is None else bits
    slots = np.full(len(nodes), -1, np.int32)
    held, heap = np.empty(workload.requests, np.int64), np.empty(workload.requests, np.int64)
    due, fresh = np.empty(workload.requests), np.zeros(workload.requests, np.int64)
    for first, last, stage, state in staged(policy, workload, capacity, resident):
        _replay(
            state,
            stage.key,
            stage.ages,
            first,
            last,
            nodes,
            offsets,
            prompts,
            workload.clock,
            bits,
            workload.prompt_tokens,
            workload.output_tokens,
            workload.block_size,
            config.prefill_rate,
            config.decode_rate,
            np.inf if config.ttl is None else config.ttl,
            config.admit,
            slots,
            held,
            due,
            heap,
            matched,
            fresh,
            counts,
        )
    if config.ttl is not None:
        matched = np.minimum(matched, fresh)
    return Timed(matched, int(counts[BYPASSED]), int(counts[MOST_HELD]))


def held_blocks(
    workload: Workload, outputs: bool
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """(nodes, offsets, prompt lengths): each request's full blocks, then those its output fills.

    An output's tokens are known from the session's next prompt, if that goes on where this one ended.
    """
    full = workload.lengths - workload.partial
    following = _following(workload.session)
    pieces: list[NDArray[np.int32]] = []
    for request, length in enumerate(full.tolist()):
        start = workload.offsets[request]
        own = workload.nodes[start : start + length]
        pieces.append(own)
        after = following[request]
        if not outputs or after < 0 or length == 0 or workload.output_tokens[request] <= 0:
            pieces.append(own[:0])
            continue
        known = int(workload.prompt_tokens[request] + workload.output_tokens[request]) // workload.block_size
        start = workload.offsets[after]
        path = workload.nodes[start : start + min(known, int(full[after]))]
        goes_on = len(path) > length and path[length - 1] == own[-1]
        pieces.append(path[length:] if goes_on else own[:0])
    lengths = np.array([len(piece) for piece in pieces], np.int64).reshape(-1, 2)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths.sum(axis=1))])
    return np.concatenate([np.empty(0, np.int32), *pieces]), offsets, np.ascontiguousarray(lengths[:, 0])


def _following(session: NDArray[np.int32]) -> NDArray[np.int64]:
    """The next request of the same session, -1 for none."""
    following = np.full(len(session), -1, np.int64)
    latest: dict[int, int] = {}
    for request in range(len(session) - 1, -1, -1):
        own = int(session[request])
        if own >= 0:
            following[request] = latest.get(own, -1)
            latest[own] = request
    return following


@compiled(types.int64(types.int64[::1], types.float64[::1], types.int64, types.int64))
def _push(heap: Any, due: Any, size: Any, request: Any) -> Any:
    """Enter `request` by the time at which it is due; of equals the earlier request first."""
    at = size
    while at > 0:
        above = heap[(at - 1) >> 1]
        if due[above] < due[request] or (due[above] == due[request] and above < request):
            break
        heap[at] = above
        at = (at - 1) >> 1
    heap[at] = request
    return size + 1


@compiled(types.int64(types.int64[::1], types.float64[::1], types.int64))
def _pop(heap: Any, due: Any, size: Any) -> Any:
    """Take the first one out of the heap, whose entry it is left in place of the last."""
    size -= 1
    first, last = heap[0], heap[size]
    at = 0
    while 2 * at + 1 < size:
        below = 2 * at + 1
        if below + 1 < size:
            a, b = heap[below + 1], heap[below]
            if due[a] < due[b] or (due[a] == due[b] and a < b):
                below += 1
        under = heap[below]
        if due[last] < due[under] or (due[last] == due[under] and last < under):
            break
        heap[at] = under
        at = below
    heap[at] = last
    heap[size] = first
    return size


@compiled(
    types.void(
        *(STATE, KEY_TYPE, types.boolean, types.int64, types.int64),
        *(NODES, types.int64[::1], types.int64[::1], types.float64[::1], types.uint64[::1]),
        *(types.int64[::1], types.int64[::1], types.int64, types.float64, types.float64),
        *(types.float64, types.int64, types.int32[::1], types.int64[::1], types.float64[::1]),
        *(types.int64[::1], types.int64[::1], types.int64[::1], types.int64[::1]),
    )
)
def _replay(
    s: Any,
    key: Any,
    ages: Any,
    begin: Any,
    end: Any,
    nodes: Any,
    offsets: Any,
    prompts: Any,
    clock: Any,
    bits: Any,
    prompt_tokens: Any,
    output_tokens: Any,
    block_size: Any,
    prefill_rate: Any,
    decode_rate: Any,
    ttl: Any,
    admit: Any,
    slots: Any,
    held: Any,
    due: Any,
    heap: Any,
    matched: Any,
    fresh: Any,
    counts: Any,
) -> None:
    """slots: the private slot of each block, -1 for none; fresh: blocks that have not expired; held: blocks a
    request holds, or -1 - that once they are published; due: when a running request's prefill or, after it,
    its output ends. Requests [begin, end) arrive; who still runs then stays in `heap`."""
    size = counts[RUNNING]
    for arriving in range(begin, end + (end == clock.size)):
        now = clock[arriving] if arriving < clock.size else np.inf
        while size > 0 and due[heap[0]] <= now:
            size = _pop(heap, due, size)
            request = heap[size]
            start = offsets[request]
            if held[request] >= 0:
                kept = matched[request]
                while kept < held[request] and s.touches[nodes[start + kept]] >= admit:
                    commit(s, nodes[start + kept], slots[start + kept])
                    kept += 1
                due[request] += max(output_tokens[request], 0) / decode_rate
                held[request] = -1 - kept
                size = _push(heap, due, size, request)
                continue
            kept = -1 - held[request]
            grown = nodes[start + prompts[request] : offsets[request + 1]]
            if kept == prompts[request] and grown.size > 0:
                if ages:
                    observe(s, grown, due[request])
                touch(s, key, grown, due[request], bits[request])
                for i in range(grown.size):
                    if s.touches[grown[i]] < admit:
                        break
                    slot, _ = take_slot(s)
                    if slot < 0:
                        break
                    commit(s, grown[i], slot)
                    kept += 1
            unpin(s, nodes[start : start + kept])
            for i in range(start + kept, start + prompts[request]):
                if slots[i] >= 0:  # never published
                    free_slot(s, slots[i])
            if ages:
                conclude(s, nodes[start : start + kept], output_tokens[request])
        if arriving == clock.size:
            break
        start = offsets[arriving]
        blocks = nodes[start : start + prompts[arriving]]
        while ttl < np.inf and fresh[arriving] < blocks.size:
            if now - s.last[blocks[fresh[arriving]]] > ttl:
                break
            fresh[arriving] += 1
        if ages:
            observe(s, blocks, now)
        touch(s, key, blocks, now, bits[arriving])
        hit = match(s, blocks)
        pin(s, blocks[:hit])
        kept = hit
        while kept < blocks.size:
            slot, _ = take_slot(s)
            if slot < 0:
                counts[BYPASSED] += 1
                break
            slots[start + kept] = slot
            kept += 1
        counts[MOST_HELD] = max(counts[MOST_HELD], s.control[HELD])
        matched[arriving], held[arriving] = hit, kept
        served = min(hit, fresh[arriving]) if ttl < np.inf else hit
        reused = min(served, max(prompt_tokens[arriving] - 1, 0) // block_size) * block_size
        due[arriving] = now + (prompt_tokens[arriving] - reused) / prefill_rate
        size = _push(heap, due, size, arriving)
    counts[RUNNING] = size
