"""Sessions that a log does not name, inferred from prompts that go on where an earlier one ended."""

from dataclasses import replace
from typing import Any

import numpy as np
from numba import njit, types

from kvtool.analysis.workload import Workload

LEAST_BLOCKS = 2
"""A continuation shares at least so many blocks: the first one alone is often a common system prompt."""


def infer_sessions(workload: Workload, gap: float | None = None) -> Workload:
    """The workload with a session for every request, inferred by prefix extension.

    A prompt continues the session of the earlier prompt that it extends. In a block-id trace, where a
    turn's generated tokens may sit in the block in which the earlier prompt ended, sharing two blocks
    is enough. gap: seconds after which a session does not go on.
    """
    session = np.full(workload.requests, -1, np.int32)
    count = _infer(
        workload.nodes,
        workload.offsets,
        workload.clock,
        np.inf if gap is None else gap,
        workload.ready_made,
        workload.distinct_blocks,
        session,
    )
    return replace(
        workload, session=session, session_names=[f"inferred-{number + 1}" for number in range(count)]
    )


def split_sessions(workload: Workload, gap: float) -> Workload:
    """The workload with each named session cut where it pauses for more than `gap` seconds."""
    latest: dict[int, tuple[float, int]] = {}
    names = list(workload.session_names)
    parts: dict[int, int] = {}
    session = workload.session.copy()
    clock = workload.clock
    for request, own in enumerate(workload.session.tolist()):
        if own < 0:
            continue
        seen, current = latest.get(own, (clock[request], own))
        if clock[request] - seen > gap:
            parts[own] = parts.get(own, 1) + 1
            current = len(names)
            names.append(f"{workload.session_names[own]}#{parts[own]}")
        latest[own] = (clock[request], current)
        session[request] = current
    return replace(workload, session=session, session_names=names)


@njit(
    types.int64(
        types.int32[::1],
        types.int64[::1],
        types.float64[::1],
        types.float64,
        types.boolean,
        types.int64,
        types.int32[::1],
    ),
    cache=True,
)
def _infer(nodes: Any, offsets: Any, clock: Any, gap: Any, shared: Any, distinct: Any, session: Any) -> Any:
    """shared: the session that touched the deepest known block; else the one that ended on the path."""
    touched = np.full(distinct, -1, np.int32)
    ended = np.full(distinct, -1, np.int32)
    count = 0
    last = np.empty(session.size)
    for request in range(session.size):
        start, stop = offsets[request], offsets[request + 1]
        depth = 0
        while start + depth < stop and touched[nodes[start + depth]] >= 0:
            depth += 1
        own = -1
        if shared:
            if depth >= LEAST_BLOCKS:
                own = touched[nodes[start + depth - 1]]
        else:
            while depth >= LEAST_BLOCKS and own < 0:
                own = ended[nodes[start + depth - 1]]
                depth -= 1
        if own < 0 or clock[request] - last[own] > gap:
            own = count
            count += 1
        session[request] = own
        last[own] = clock[request]
        for at in range(start, stop):
            touched[nodes[at]] = own
        if stop > start:
            ended[nodes[stop - 1]] = own
    return count
