"""Blocks whose worth changes while they wait: traits at each use, ranks renewed as time passes.

For policies with `ages`. A driver calls `observe` before `core.touch` and `conclude` when it has let a
request's blocks go. Ranks are renewed each time a 32nd of the capacity has been touched, so that the
cost per touch is bounded and the error in age is small against the time a block stays.
"""

from typing import Any

import numpy as np
from numba import types

from kvtool.cache.core import HEAP, NODES, STATE, TOUCHED, compiled, offer, sink, withdraw
from kvtool.cache.reuse_table import (
    BLOCK_SIZE,
    CLASS_SHIFT,
    DEPTH,
    END,
    END_SHIFT,
    GAP,
    HIT,
    NEW,
    OUTPUT,
    PAUSE,
    PROMPT,
    RUNNING,
    TURN,
    USES,
    classes_of,
    code_of,
    doublings,
    seconds_code,
    with_code,
    worth_of,
)


@compiled(types.void(STATE, types.float64))
def renew(s: Any, now: Any) -> None:
    """Rank all resident blocks by their worth at `now` and put the heap in order."""
    s.control[TOUCHED] = 0
    for slot in range(s.owner.size):
        node = s.owner[slot]
        if node >= 0:
            s.key[node] = worth_of(s.parameters, s.traits[node], now - s.last[node], s.depth[node])
    for at in range(s.control[HEAP] // 2 - 1, -1, -1):
        sink(s, at, s.heap[at])


@compiled(types.void(STATE, types.int64, types.float64))
def pass_time(s: Any, touched: Any, now: Any) -> None:
    """Renew the ranks if enough blocks have been touched since they were renewed last."""
    s.control[TOUCHED] += touched
    if s.control[TOUCHED] * 32 >= s.owner.size:
        renew(s, now)


@compiled(types.void(STATE, NODES, types.float64))
def observe(s: Any, nodes: Any, now: Any) -> None:
    """Note the traits of `nodes` as a request at `now` finds them; call before `touch`.

    A block that is appended to a running request takes over what its parent knows of the request.
    """
    seen = 0
    while seen < nodes.size and s.touches[nodes[seen]] > 0:
        seen += 1
    request = np.int64(0)
    if nodes.size > 0 and s.depth[nodes[0]] > 0:
        request = s.traits[s.parent[nodes[0]]]
    else:
        if seen > 0:
            before = nodes[seen - 1]
            if code_of(s.traits[before], END) <= 1:
                request = with_code(request, TURN, code_of(s.traits[before], TURN) + 1)
                request = with_code(request, GAP, seconds_code(now - s.last[before]))
        size = s.parameters[BLOCK_SIZE]
        request = with_code(request, PROMPT, doublings(nodes.size * size / 128.0))
        request = with_code(request, NEW, doublings((nodes.size - seen) * size / 128.0))
    request = with_code(request, OUTPUT, 0)
    for i in range(nodes.size):
        node = nodes[i]
        known = s.touches[node] > 0
        traits = with_code(request, USES, np.int64(s.touches[node]))
        traits = with_code(traits, END, RUNNING)
        traits = with_code(traits, DEPTH, doublings(float(s.depth[node])))
        traits = with_code(traits, HIT, 1 if known else 0)
        traits = with_code(traits, PAUSE, seconds_code(now - s.last[node]) if known else 0)
        s.traits[node] = traits
    pass_time(s, nodes.size, now)


@compiled(types.void(STATE, NODES, types.int64))
def conclude(s: Any, nodes: Any, output_tokens: Any) -> None:
    """A request ends: class its blocks by all that is known now (-1: output tokens unknown)."""
    output = 0
    if output_tokens >= 0:
        output = 1 + doublings((output_tokens / 16.0) ** 2)
    shift = np.int64(s.parameters[END_SHIFT])
    for i in range(nodes.size):
        node = nodes[i]
        traits = with_code(s.traits[node], OUTPUT, output)
        traits = with_code(traits, END, min(nodes.size - 1 - i + shift, 2))
        mask = (np.int64(1) << CLASS_SHIFT) - 1
        traits = (traits & mask) | (classes_of(s.parameters, traits) << CLASS_SHIFT)
        s.traits[node] = traits
        withdraw(s, node)
        s.key[node] = worth_of(s.parameters, traits, 0.0, s.depth[node])
        offer(s, node)


@compiled(types.void(STATE, types.float64))
def reclassify(s: Any, now: Any) -> None:
    """The tree has changed: class every known block again by the traits it has."""
    mask = (np.int64(1) << CLASS_SHIFT) - 1
    unseen = classes_of(s.parameters, 0)  # most blocks, where the log is split among replicas
    for node in range(s.traits.size):
        traits = s.traits[node] & mask
        classes = classes_of(s.parameters, traits) if traits else unseen
        s.traits[node] = traits | (classes << CLASS_SHIFT)
    renew(s, now)
