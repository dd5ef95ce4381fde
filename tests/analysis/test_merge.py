"""Workloads of parts, merged, against the workload of the whole."""

import dataclasses
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvtool.analysis.build import build_runs
from kvtool.analysis.curve import LruCurve
from kvtool.analysis.hit_rates import hit_rates
from kvtool.analysis.merge import merge
from kvtool.analysis.prefixes import usage
from kvtool.analysis.sessions import infer_sessions
from kvtool.requests import BlockIds, Request, Source


class Ids:
    """Stands in for an encoder: prompts are token ids already."""

    fingerprint = "ids"

    def encode(self, requests):
        return [each.token_ids for each in requests]


ROWS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 1), max_size=14),
        st.sampled_from(["a", "b"]),
        st.sampled_from([None, "s", "t"]),
        st.integers(0, 5),
        st.sampled_from([None, "named"]),
    ),
    max_size=30,
)


def requests_of(rows, timed, trace):
    for row, (tokens, model, session, arrival, name) in enumerate(rows):
        file = f"log{row % 2}"
        ids = [int("1" + "".join(map(str, tokens[: end + 1]))) for end in range(len(tokens))]
        prompt = (
            {"block_ids": BlockIds(np.array(ids, np.int64), 2, max(2 * len(ids) - row % 2, 0))}
            if trace
            else {"token_ids": np.array(tokens, np.uint32)}
        )
        yield Request(
            id=name or f"{file}:{row}",
            source=Source(file, row),
            arrival=arrival if timed else None,
            model=model,
            session=session,
            output_tokens=row,
            **prompt,
        )


def assert_equal(one, other):
    for field in dataclasses.fields(one):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if field.name == "meta":
            assert left.to_pylist() == right.to_pylist()
        elif isinstance(left, np.ndarray):
            assert left.dtype == right.dtype and np.array_equal(left, right), field.name
        else:
            assert left == right, field.name


@given(ROWS, st.lists(st.integers(0, 30), max_size=3), st.booleans(), st.booleans())
def test_parts_merged_are_the_whole_built_at_once(rows, cuts, timed, trace):
    requests = list(requests_of(rows, timed, trace))
    bounds = [0, *sorted(cuts), 30]
    pieces = [requests[start:stop] for start, stop in pairwise(bounds)]
    pieces = [piece for piece in pieces if piece] or [requests]
    encoder = None if trace else Ids()
    merged = merge([build_runs(piece, encoder, 2) for piece in pieces])
    whole = build_runs(requests, encoder, 2)
    assert_equal(merged, whole)
    assert np.array_equal(merged.unfolded().hashes, whole.unfolded().hashes)


@given(ROWS, st.integers(0, 30))
def test_merged_counts_add_up_and_times_are_the_earliest_and_latest(rows, cut):
    """Against the parts' own node tables, joined by block hash."""
    requests = list(requests_of(rows, True, False))
    pieces = [piece for piece in (requests[:cut], requests[cut:]) if piece]
    table = {}
    for part in (build_runs(piece, Ids(), 2).unfolded() for piece in pieces):
        counts = usage(part)
        for node in range(part.distinct_blocks):
            first, last = part.arrival[counts.first[node]], part.arrival[counts.last[node]]
            uses, earliest, latest = table.get(bytes(part.hashes[node]), (0, first, last))
            row = (uses + counts.requests[node], min(first, earliest), max(last, latest))
            table[bytes(part.hashes[node])] = row
    if pieces:
        merged = merge([build_runs(piece, Ids(), 2) for piece in pieces]).unfolded()
        counts = usage(merged)
        assert table == {
            bytes(merged.hashes[node]): (
                counts.requests[node],
                merged.arrival[counts.first[node]],
                merged.arrival[counts.last[node]],
            )
            for node in range(merged.distinct_blocks)
        }


def test_everything_else_follows_from_the_merged_workload():
    random = np.random.default_rng(3)
    rows = [
        (random.integers(0, 2, 12).tolist(), "a", None, int(random.integers(50)), None) for _ in range(200)
    ]
    requests = list(requests_of(rows, True, False))
    whole = build_runs(requests, Ids(), 2)
    merged = merge([build_runs(requests[at : at + 70], Ids(), 2) for at in range(0, 200, 70)])
    assert hit_rates(merged).tokens == hit_rates(whole).tokens > 0
    assert LruCurve(merged).at(20) == LruCurve(whole).at(20)
    assert np.array_equal(infer_sessions(merged.coarser(4)).session, infer_sessions(whole.coarser(4)).session)
