"""Use counts by brute force; hot prefixes on trees small enough to reason about."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvtool.analysis.build import build_workload
from kvtool.analysis.prefixes import hot_prefixes, usage
from kvtool.requests import BlockIds, Request, Source


def workload_of(paths):
    names = {}
    requests = []
    for row, (path, session) in enumerate(paths):
        ids = np.array(
            [names.setdefault(tuple(path[: i + 1]), len(names)) for i in range(len(path))], np.int64
        )
        requests.append(
            Request(
                id=str(row),
                source=Source("t", row),
                session=session,
                block_ids=BlockIds(ids, 4, 4 * len(path)),
            )
        )
    return build_workload(requests, None)


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 1), max_size=5), st.sampled_from([None, "s", "t"])), max_size=15
    )
)
def test_usage_by_brute_force(paths):
    workload = workload_of(paths)
    counts = usage(workload)
    for node in range(workload.distinct_blocks):
        users = [
            request
            for request in range(workload.requests)
            if node in workload.nodes[workload.offsets[request] : workload.offsets[request + 1]]
        ]
        assert counts.requests[node] == len(users)
        assert (counts.first[node], counts.last[node]) == (users[0], users[-1])
        assert counts.sessions[node] == len({paths[user][1] for user in users} - {None})


def listed(paths, most=10):
    workload = workload_of(paths)
    return [
        (prefix.tokens, prefix.requests, prefix.sessions, prefix.saved)
        for prefix in hot_prefixes(workload, usage(workload), most)
    ]


def test_one_chain_is_listed_once_at_its_end():
    assert listed([((1, 2, 3, n), "s") for n in range(5)]) == [(12, 5, 1, 48)]


def test_a_branch_below_counts_only_what_it_adds():
    """Ten requests share one block; three of them two more: the root first, then the addition."""
    paths = [((1, n + 10), f"s{n}") for n in range(7)] + [((1, 2, 3, n + 20), "t") for n in range(3)]
    assert listed(paths) == [(4, 10, 8, 36), (12, 3, 1, 16)]


def test_a_root_above_counts_only_requests_not_yet_served():
    """The long prefix is worth more; its root then serves the two others, one of which computes it."""
    paths = [((1, 2, 3, 4, 5, n), "a") for n in range(10, 14)] + [((1, n), "b") for n in (20, 21)]
    assert listed(paths) == [(20, 4, 1, 60), (4, 6, 2, 4)]


def test_nothing_shared_nothing_listed():
    assert listed([((n,), "s") for n in range(3)]) == []
    assert listed([]) == []
