"""Read plans, executed on token sets instead of tensors: every row sees exactly its keys, each once."""

from collections import Counter

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.engine.compute.reads import MIN_RUN, MIN_SHARED, Part, ReadPlan, Span


def read_tokens(part: Part, block_size: int) -> list[int]:
    """Token indices in the arena that a part reads, in its order."""
    keys = part.keys
    assert not isinstance(keys, slice)
    if keys.gather is None:
        return list(range(keys.first, keys.last))
    tokens = [int(slot) * block_size + offset for slot in keys.gather for offset in range(block_size)]
    return tokens[keys.first : keys.last]


def seen_by_row(plan: ReadPlan, window: int | None, rows: int) -> list[Counter[int]]:
    """Arena tokens that each row's parts show it, counted."""
    fresh = {
        row: span.slots[position // plan.block_size] * plan.block_size + position % plan.block_size
        for span in plan.spans
        for row, position in zip(range(span.first, span.last), range(span.start, span.end), strict=True)
    }
    seen: list[Counter[int]] = [Counter() for _ in range(rows)]
    opened: Counter[int] = Counter()
    for part in plan.parts(window):
        numbers = list(range(rows))[part.rows] if isinstance(part.rows, slice) else part.rows.tolist()
        assert len(set(numbers)) == len(numbers)
        if part.opens:
            opened.update(numbers)
        for index, row in enumerate(numbers):
            assert opened[row] == 1, "a row is merged before it is opened, or opened twice"
            if isinstance(part.keys, slice):
                read = range(rows)[part.keys]
                seen[row].update(fresh[other] for other in read if not part.causal or other <= row)
                continue
            tokens = read_tokens(part, plan.block_size)
            if part.mask is not None:
                shown = (part.mask[index] == 0).tolist()
                assert len(shown) == len(tokens) and any(shown)
                tokens = [token for token, visible in zip(tokens, shown, strict=True) if visible]
            seen[row].update(tokens)
    assert set(opened) == set(range(rows))
    return seen


@st.composite
def packed_batches(draw: st.DrawFn) -> tuple[list[Span], int]:
    """Spans whose block tables share prefixes of various lengths, over slots in and out of order."""
    block_size = draw(st.sampled_from([1, 2, 4]))
    order = draw(st.permutations(range(60))) if draw(st.booleans()) else list(range(60))
    fresh = iter([*order, *range(60, 2000)])
    tables: list[list[int]] = []
    spans: list[Span] = []
    row = 0
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, 40 * block_size))
        length = draw(st.sampled_from([1, 1, 2, 5, 9]))
        blocks = -(-(start + length) // block_size)
        shared: list[int] = []
        if tables and draw(st.booleans()):
            parent = draw(st.sampled_from(tables))
            most = min(len(parent), start // block_size)
            shared = parent[: draw(st.integers(0, most))]
        table = shared + [next(fresh) for _ in range(blocks - len(shared))]
        tables.append(table)
        spans.append(Span(row, row + length, start, table))
        row += length
    return spans, block_size


@settings(max_examples=300, deadline=None)
@given(batch=packed_batches(), window=st.sampled_from([None, 1, 3, 8, 50]))
def test_every_row_sees_its_keys_once(batch, window):
    spans, block_size = batch
    plan = ReadPlan(spans, block_size, torch.device("cpu"), torch.float32)
    seen = seen_by_row(plan, window, spans[-1].last)
    for span in spans:
        for row in range(span.first, span.last):
            position = span.start + row - span.first
            low = 0 if window is None else max(position - window + 1, 0)
            expected = [
                span.slots[at // block_size] * block_size + at % block_size for at in range(low, position + 1)
            ]
            assert seen[row] == Counter(expected)


def plan_of(*spans: Span) -> list[Part]:
    return ReadPlan(list(spans), 4, torch.device("cpu"), torch.float32).parts(None)


def test_a_decode_over_consecutive_slots_is_one_read_in_place():
    (part,) = plan_of(Span(0, 1, 99, list(range(10, 35))))
    assert part.keys is not None and part.keys.gather is None
    assert (part.keys.first, part.keys.last) == (40, 140)


def test_short_runs_are_gathered_in_one_read_and_long_ones_left_in_place():
    long_run = list(range(100, 100 + MIN_RUN))
    slots = [9, 7, 5, *long_run, 3, 1]
    parts = plan_of(Span(0, 1, len(slots) * 4 - 2, slots))
    assert [part.opens for part in parts] == [True, False]
    kept, gathered = (part.keys for part in parts)
    assert kept is not None and kept.gather is None and kept.last - kept.first == MIN_RUN * 4
    assert gathered is not None and gathered.gather is not None
    assert gathered.gather.tolist() == [9, 7, 5, 3, 1] and gathered.last == 5 * 4 - 1


def test_a_shared_prefix_is_read_once_for_all_who_share_it():
    prefix = list(range(MIN_SHARED))
    parts = plan_of(*(Span(row, row + 1, 4 * MIN_SHARED, [*prefix, 50 + row]) for row in range(8)))
    shared = [part for part in parts if not part.opens]
    assert len(shared) == 1 and len(parts) == 9
    assert isinstance(shared[0].rows, torch.Tensor) and shared[0].rows.tolist() == list(range(8))


def test_too_little_in_common_is_not_worth_a_pass():
    prefix = list(range(MIN_SHARED - 1))
    start = 4 * len(prefix)
    parts = plan_of(Span(0, 1, start, [*prefix, 50]), Span(1, 2, start, [*prefix, 60]))
    assert all(part.opens for part in parts)
