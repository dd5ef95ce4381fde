"""Sessions that a log does not name, inferred from prompts that go on where an earlier one ended."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar, overload

import numpy as np
from numba import types

from kvtool.analysis.workload import PromptTree
from kvtool.compiling import njit

Tree = TypeVar("Tree", bound=PromptTree)

LEAST_BLOCKS = 2
"""A continuation shares at least so many blocks: the first one alone is often a common system prompt."""


def infer_sessions(workload: Tree, gap: float | None = None) -> Tree:
    """The workload with a session for every request, inferred by prefix extension.

    A prompt continues the session of the earlier prompt that it extends. In a block-id trace, where a
    turn's generated tokens may sit in the block in which the earlier prompt ended, sharing two blocks
    is enough. gap: seconds after which a session does not go on.
    """
    session = np.full(workload.requests, -1, np.int32)
    count = _infer(
        workload.leaf,
        workload.parent,
        workload.depth,
        workload.clock,
        np.inf if gap is None else gap,
        workload.ready_made,
        session,
    )
    return replace(workload, session=session, session_names=InferredNames(count))


class InferredNames(Sequence[str]):
    """inferred-1, inferred-2, ...: as many as millions of requests, so they are not kept."""

    def __init__(self, count: int) -> None:
        self._numbers = range(1, count + 1)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [f"inferred-{number}" for number in self._numbers[index]]
        return f"inferred-{self._numbers[index]}"


def split_sessions(workload: Tree, gap: float) -> Tree:
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
        types.int32[::1],
        types.int32[::1],
        types.float64[::1],
        types.float64,
        types.boolean,
        types.int32[::1],
    ),
    cache=True,
)
def _infer(leaf: Any, parent: Any, depth: Any, clock: Any, gap: Any, shared: Any, session: Any) -> Any:
    """shared: the session that touched the deepest known block; else the one that ended on the path."""
    touched = np.full(parent.size, -1, np.int32)
    ended = np.full(parent.size, -1, np.int32)
    count = 0
    last = np.empty(session.size)
    for request in range(session.size):
        node = leaf[request]
        while node >= 0 and touched[node] < 0:
            node = parent[node]
        own = -1
        if shared:
            if node >= 0 and depth[node] >= LEAST_BLOCKS - 1:
                own = touched[node]
        else:
            while node >= 0 and depth[node] >= LEAST_BLOCKS - 1 and own < 0:
                own = ended[node]
                node = parent[node]
        if own < 0 or clock[request] - last[own] > gap:
            own = count
            count += 1
        session[request] = own
        last[own] = clock[request]
        node = leaf[request]
        if node >= 0:
            ended[node] = own
        while node >= 0:
            touched[node] = own
            node = parent[node]
    return count
