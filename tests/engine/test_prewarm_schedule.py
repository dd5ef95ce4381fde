"""How a plan is cut into forwards and packed into files: nothing twice, nothing split, the same on resume."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvtool.analysis.build import build_workload
from kvtool.analysis.plan import Plan, PlanConfig, make_plan
from kvtool.engine import schedule
from kvtool.engine.schedule import Batch, Piece, batches, chunk_tokens, chunking, cut_pieces, split
from kvtool.requests import Request, Source


class Ids:
    """Stands in for an encoder: prompts are token ids already."""

    fingerprint = "ids"

    def encode(self, requests):
        return [each.token_ids for each in requests]


def plan_of(prompts: list[list[int]]) -> Plan:
    requests = [
        Request(id=str(number), source=Source("log", number + 1), token_ids=np.array(tokens, np.uint32))
        for number, tokens in enumerate(prompts)
    ]
    workload = build_workload(requests, Ids(), 2)
    return make_plan(workload, PlanConfig(min_requests=1), lambda depth: 10 + (depth == 0), 10_000)


def prefixes(plan: Plan) -> list[tuple[int, ...]]:
    """The whole prefix of every row."""
    found: list[tuple[int, ...]] = []
    for parent, tokens in zip(plan.parent.tolist(), plan.tokens.tolist(), strict=True):
        found.append((found[parent] if parent >= 0 else ()) + tuple(tokens))
    return found


PROMPTS = st.lists(st.lists(st.integers(0, 1), min_size=3, max_size=40), min_size=1, max_size=12)


@given(PROMPTS, st.sampled_from([4, 8, 512]))
def test_pieces_tile_the_plan_in_chains_that_end_at_branches_and_multiples(prompts, size):
    plan = plan_of(prompts)
    original, schedule.CHUNK_TOKENS = schedule.CHUNK_TOKENS, size
    try:
        pieces = cut_pieces(plan)
        per_piece = chunk_tokens(2) // 2
    finally:
        schedule.CHUNK_TOKENS = original
    rows = [row for piece in pieces for row in range(piece.first, piece.last)]
    assert rows == list(range(len(plan)))
    children = np.bincount(plan.parent + 1, minlength=len(plan) + 1)[1:]
    starts = {piece.first for piece in pieces}
    for piece in pieces:
        assert piece.parent == plan.parent[piece.first]
        for row in range(piece.first + 1, piece.last):
            assert plan.parent[row] == row - 1
    for row in range(len(plan)):
        parent = int(plan.parent[row])
        must_start = parent < 0 or children[parent] != 1 or plan.depth[row] % per_piece == 0
        assert (row in starts) == must_start


@given(PROMPTS, st.integers(1, 80), st.data())
def test_a_resumed_run_packs_the_rest_as_the_first_run_did(prompts, limit, data):
    plan = plan_of(prompts)
    pieces = cut_pieces(plan)
    whole = batches(plan, pieces, lambda row: True, limit)
    assert [row for batch in whole for row in batch.stored] == list(range(len(plan)))
    for batch in whole:
        assert sum(map(len, batch.forwards)) == 1 or plan.bytes[batch.stored].sum() <= limit
    done = data.draw(st.integers(0, len(whole)))
    present = {row for batch in whole[:done] for row in batch.stored}
    rest = batches(plan, pieces, lambda row: row not in present, limit)
    assert [batch.stored for batch in rest] == [batch.stored for batch in whole[done:]]
    for again, first in zip(rest, whole[done:], strict=True):  # and in the same forwards
        assert storing(again) == storing(first)


def storing(batch: Batch) -> list[tuple[Piece, ...]]:
    """The forwards that make something new."""
    new = set(batch.stored)
    return [
        forward
        for forward in batch.forwards
        if any(not new.isdisjoint(range(piece.first, piece.last)) for piece in forward)
    ]


@given(PROMPTS, st.integers(1, 80), st.data())
def test_what_is_visited_is_what_is_missing_and_what_it_builds_on(prompts, limit, data):
    plan = plan_of(prompts)
    pieces = cut_pieces(plan)
    missing = set(data.draw(st.lists(st.integers(0, len(plan) - 1), max_size=5)))
    forwards = [
        forward for batch in batches(plan, pieces, missing.__contains__, limit) for forward in batch.forwards
    ]
    visited = [piece for forward in forwards for piece in forward]
    assert len(set(visited)) == len(visited)
    home: dict[int, tuple[int, ...]] = {}  # position -> the prefix whose last token stands there
    paths = prefixes(plan)
    for forward in forwards:
        assert len(forward) == 1 or sum(map(len, forward)) <= chunk_tokens(2) // 2
        for piece in forward:
            start = int(plan.depth[piece.first]) * 2 + piece.shared
            path = paths[piece.last - 1]
            assert all(home[at] == path[: at + 1] for at in range(start))
            if piece.ends:
                continue  # stands at the side, where nobody looks for it
            home |= {at: path[: at + 1] for at in range(start, len(path))}
    holder = {row: number for number, piece in enumerate(pieces) for row in range(piece.first, piece.last)}
    needed: set[int] = set()
    queue = [holder[row] for row in missing]
    while queue:
        number = queue.pop()
        needed.add(number)
        above = [holder[pieces[number].parent]] if pieces[number].parent >= 0 else []
        queue.extend({*above, *pieces[number].owners} - needed)
    assert visited == [pieces[number] for number in sorted(needed)]


@given(PROMPTS)
def test_every_token_of_the_trie_is_computed_once(prompts):
    plan = plan_of(prompts)
    paths = prefixes(plan)
    computed = []
    for piece in cut_pieces(plan):
        start = int(plan.depth[piece.first]) * 2 + piece.shared
        path = paths[piece.last - 1]
        computed += [path[: at + 1] for at in range(start, len(path))]
    assert len(set(computed)) == len(computed) == plan.forecast.tokens
    assert set(computed) == {path[: at + 1] for path in paths for at in range(len(path))}


@given(PROMPTS, st.integers(1, 80), st.integers(1, 3), st.data())
def test_each_device_has_all_that_its_files_build_on(prompts, limit, devices, data):
    plan = plan_of(prompts)
    pieces = cut_pieces(plan)
    missing = set(data.draw(st.lists(st.integers(0, len(plan) - 1), max_size=9)))
    work = batches(plan, pieces, missing.__contains__, limit)
    shares = split(pieces, work, devices, 2)
    paths = prefixes(plan)
    for device, share in enumerate(shares):
        assert [batch.stored for batch in share] == [batch.stored for batch in work[device::devices]]
        assert [storing(batch) for batch in share] == [storing(batch) for batch in work[device::devices]]
        home: dict[int, tuple[int, ...]] = {}
        for piece in (piece for batch in share for forward in batch.forwards for piece in forward):
            start = int(plan.depth[piece.first]) * 2 + piece.shared
            path = paths[piece.last - 1]
            assert all(home[at] == path[: at + 1] for at in range(start))
            if not piece.ends:
                home |= {at: path[: at + 1] for at in range(start, len(path))}


@given(PROMPTS)
def test_a_piece_ends_where_no_other_reads_what_it_computed(prompts):
    plan = plan_of(prompts)
    pieces = cut_pieces(plan)
    for number, piece in enumerate(pieces):
        rows = range(piece.first, piece.last)
        users = [other for other in pieces if other.parent in rows or number in other.owners]
        assert piece.ends == (not users)


def test_ends_of_prompts_share_a_forward_and_what_others_need_is_alone():
    common, ends = [1, 1, 2, 2], [[3, 3], [4, 4, 5, 5], [6, 6]]
    plan = plan_of(
        [[*common, *end, 0] for end in ends] + [[*common, 7, 7, 8, 8, 9, 0], [*common, 7, 7, 9, 9, 9]]
    )
    (batch,) = batches(plan, cut_pieces(plan), lambda row: True, 10_000)
    tokens = [
        [plan.tokens[piece.first : piece.last, 0].tolist() for piece in step] for step in batch.forwards
    ]
    assert tokens == [[[1, 2]], [[7]], [[8], [9], [3], [4, 5], [6]]]


def test_full_pieces_are_whole_blocks():
    assert chunk_tokens(32) == 512 and chunk_tokens(24) == 504 and chunk_tokens(1024) == 1024
    assert chunking(24)["tokens"] == 504
