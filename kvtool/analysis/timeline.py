"""A log along its time: hit rate per interval, and the requests of its largest sessions."""

import numpy as np
from numpy.typing import NDArray

from kvtool.analysis.hit_rates import HitRates
from kvtool.analysis.workload import PromptTree
from kvtool.page import Call, Interval, OverTime, Session, Sessions

INTERVALS = 96
EACH = 4
"""Requests of a mean interval at least: a short log has fewer of them."""
SESSIONS = 24
CALLS = 60
"""Requests of one session that are shown."""


def _places(workload: PromptTree) -> tuple[bool, NDArray[np.int64]]:
    """(whether the log has times, µs UTC or number of each request, never falling)."""
    known = workload.arrival >= 0
    if not known.any():
        return False, np.arange(workload.requests)
    first = int(workload.arrival[known].min())
    return True, np.maximum.accumulate(np.where(known, workload.arrival, first))


def over_time(workload: PromptTree, rates: HitRates) -> OverTime:
    """Sums of the requests that arrive in each of at most INTERVALS equal intervals."""
    timed, at = _places(workload)
    most = min(max(workload.requests // EACH, 1), INTERVALS)
    width = max(-(-(int(at[-1] - at[0]) + 1) // most), 1)
    interval = (at - at[0]) // width
    count = int(interval[-1]) + 1
    requests = np.bincount(interval, minlength=count)
    prompt, saved = (_sums(interval, of, count) for of in (workload.prompt_tokens, rates.saved))
    rows = [
        Interval(int(at[0]) + number * width, int(requests[number]), int(prompt[number]), int(saved[number]))
        for number in range(count)
    ]
    return OverTime(timed, width, rows)


def _sums(group: NDArray[np.int64], values: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    sums = np.zeros(count, np.int64)
    np.add.at(sums, group, values)
    return sums


def sessions(workload: PromptTree, rates: HitRates, named: bool) -> Sessions | None:
    """The SESSIONS with most prompt tokens, in order of their first request; None in a log without any.

    named: show the log's own names; else sessions are numbered as they are listed.
    """
    of = workload.session
    if not (of >= 0).any():
        return None
    timed, at = _places(workload)
    inside = np.flatnonzero(of >= 0)
    tokens = np.zeros(int(of.max()) + 1, np.int64)
    np.add.at(tokens, of[inside], workload.prompt_tokens[inside])
    largest = np.argsort(-tokens, kind="stable")[:SESSIONS]
    largest = largest[tokens[largest] > 0]
    grouped = inside[np.argsort(of[inside], kind="stable")]
    ends = np.searchsorted(of[grouped], largest, side="right")
    starts = np.searchsorted(of[grouped], largest, side="left")
    lists = [grouped[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    lists.sort(key=lambda own: int(own[0]))
    rows = [
        Session(
            name=str(workload.session_names[int(of[own[0]])]) if named else f"session {number}",
            requests=len(own),
            prompt_tokens=int(workload.prompt_tokens[own].sum()),
            saved_tokens=int(rates.saved[own].sum()),
            calls=[
                Call(int(at[one]), int(workload.prompt_tokens[one]), int(rates.saved[one]))
                for one in own[_even(len(own))].tolist()
            ],
        )
        for number, own in enumerate(lists, start=1)
    ]
    return Sessions(timed, workload.sessions, rows)


def _even(count: int) -> NDArray[np.int64]:
    """At most CALLS places of `count`, the first and the last among them."""
    if count <= CALLS:
        return np.arange(count)
    return np.linspace(0, count - 1, CALLS).round().astype(np.int64)
