"""The CPU attention against float64: shared tables, windows, and NaN in every slot not written."""

import copy
import mmap
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.engine.compute.cpu import attend, kernel, team
from kvtool.engine.compute.cpu.attend import Cores, CoresBatch
from kvtool.engine.compute.cpu.tasks import CHUNK, plan, runs, shares
from kvtool.engine.compute.reads import Span

pytestmark = pytest.mark.skipif(team.torch_team() is None, reason="torch has no workers to lend")


@dataclass
class Case:
    """A packed batch over an arena whose other slots are NaN."""

    spans: list[Span]
    block: int
    heads: int
    kv_heads: int
    width: int
    window: int | None

    def __post_init__(self) -> None:
        self.tokens = self.spans[-1].last
        slots = 1 + max(slot for span in self.spans for slot in span.slots)
        random = torch.Generator().manual_seed(self.tokens)
        shape = (slots, self.block, self.kv_heads, self.width)
        self.keys, self.values = torch.full(shape, torch.nan), torch.full(shape, torch.nan)
        for span in self.spans:
            for position in range(span.start):
                place = (span.slots[position // self.block], position % self.block)
                self.keys[place] = torch.randn(self.kv_heads, self.width, generator=random)
                self.values[place] = torch.randn(self.kv_heads, self.width, generator=random)
        shapes = ((self.tokens, heads, self.width) for heads in (self.heads, self.kv_heads, self.kv_heads))
        self.query, self.key, self.value = (
            3 * torch.randn(shape, generator=random).transpose(0, 1) for shape in shapes
        )

    def run(self, spans: list[Span], workers: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
        """Output and log-sum-exp of the rows of `spans`, of this batch or some of it."""
        lent = team.torch_team()
        assert lent is not None
        cores = self.cores = Cores(lent)
        cores.workers = workers
        rows = np.concatenate([np.arange(span.first, span.last) for span in spans])
        first, packed = 0, []
        for span in spans:
            count = span.last - span.first
            packed.append(Span(first, first + count, span.start, span.slots))
            first += count
        writes = np.array(
            [
                span.slots[position // self.block] * self.block + position % self.block
                for span in spans
                for position in range(span.start, span.end)
            ]
        )
        batch = CoresBatch(cores, packed, self.block, writes)
        given = (each[:, rows] for each in (self.query, self.key, self.value))
        return batch.attend(self.keys, self.values, *given, self.width**-0.5, self.window)

    def truth(self) -> tuple[torch.Tensor, torch.Tensor]:
        """By definition, in float64, after `run` has stored the batch's keys and values."""
        out = torch.empty(self.tokens, self.heads, self.width, dtype=torch.float64)
        sums = torch.empty(self.tokens, self.heads, dtype=torch.float64)
        group = self.heads // self.kv_heads
        for span in self.spans:
            keys, values = (
                each[list(span.slots)].flatten(0, 1).double() for each in (self.keys, self.values)
            )
            for row in range(span.first, span.last):
                end = span.start + row - span.first + 1
                start = 0 if self.window is None else max(0, end - self.window)
                for head in range(self.heads):
                    seen = keys[start:end, head // group]
                    scores = seen @ self.query[head, row].double() * self.width**-0.5
                    sums[row, head] = torch.logsumexp(scores, 0)
                    out[row, head] = torch.softmax(scores, 0) @ values[start:end, head // group]
        return out, sums


@st.composite
def cases(draw: st.DrawFn) -> Case:
    block = draw(st.sampled_from([1, 4, 8, 16, 32]))
    group = draw(st.sampled_from([1, 2, 3, 8]))
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    free = iter(draw(st.permutations(range(3000))) if draw(st.booleans()) else range(3000))
    spans: list[Span] = []
    first = 0
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, 80) | st.sampled_from([CHUNK - 1, CHUNK, CHUNK + 70]))
        count = draw(st.integers(1, 40) | st.just(1))
        table: list[int] = []
        if spans and draw(st.booleans()):  # as much as is full and computed before both
            other = draw(st.sampled_from(spans))
            table = list(other.slots[: min(other.start, start) // block])
        table += [next(free) for _ in range(-(-(start + count) // block) - len(table))]
        spans.append(Span(first, first + count, start, table))
        first += count
    width = draw(st.sampled_from([8, 16, 64, 80, 128]))
    window = draw(st.none() | st.integers(1, 100))
    return Case(spans, block, group * kv_heads, kv_heads, width, window)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_output_and_log_sum_exp_are_those_of_the_definition(case):
    out, sums = case.run(case.spans)
    for stored, given_ in ((case.keys, case.key), (case.values, case.value)):
        for span in case.spans:
            rows = stored[list(span.slots)].flatten(0, 1)[span.start : span.end]
            assert torch.equal(rows, given_[:, span.first : span.last].transpose(0, 1))
    true_out, true_sums = case.truth()
    torch.testing.assert_close(out.double(), true_out, atol=1e-4, rtol=0)
    torch.testing.assert_close(sums.double(), true_sums, atol=1e-4, rtol=0)


@settings(max_examples=25, deadline=None)
@given(cases(), st.sampled_from([1, 2, 3, 7]))
def test_no_bit_depends_on_the_batch_or_the_workers(case, workers):
    out, sums = case.run(case.spans)
    for span in case.spans:
        alone, alone_sums = case.run([span], workers)
        assert torch.equal(alone, out[span.first : span.last])
        assert torch.equal(alone_sums, sums[span.first : span.last])


def test_no_bit_depends_on_where_a_prompt_is_cut():
    length, cut = CHUNK + 150, CHUNK + 37
    table = list(range(-(-length // 16)))
    whole = Case([Span(0, length, 0, table)], 16, 6, 2, 64, None)
    out, _ = whole.run(whole.spans)
    case = Case([Span(0, length, 0, table)], 16, 6, 2, 64, None)
    parts = [case.run([Span(first, last, first, table)])[0] for first, last in ((0, cut), (cut, length))]
    assert torch.equal(torch.cat(parts), out)


@settings(max_examples=25, deadline=None)
@given(cases(), st.sampled_from([np.nan, np.inf, -np.inf, 1e38]))
def test_a_sequence_that_overflows_stays_alone(case, number):
    """What it stored itself, and its rows, are not finite; those of the others are the same bits."""
    before, _ = case.run(case.spans)
    span = case.spans[0]
    shared = {slot for other in case.spans[1:] for slot in other.slots}
    own = [slot for slot in span.slots if slot not in shared]
    case.keys[own], case.values[own] = number, number
    for given_ in (case.query, case.key, case.value):
        given_[:, span.first : span.last] = number
    after, _ = case.run(case.spans)
    assert torch.equal(after[span.last :], before[span.last :])
    assert not after[: span.last].isfinite().all()


@settings(max_examples=25, deadline=None)
@given(cases(), st.integers(1, 300), st.integers(1, 1500))
def test_no_bit_depends_on_how_many_rows_wait_to_be_merged(case, rows, size):
    out, sums = case.run(case.spans)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attend, "PARTS", rows * size)
        waved, waved_sums = case.run(case.spans)
    assert torch.equal(waved, out) and torch.equal(waved_sums, sums)


@settings(max_examples=40, deadline=None)
@given(cases(), st.integers(1, 120))
def test_runs_are_all_rows_in_their_order_and_no_larger_than_asked(case, parts):
    row = 0
    positions = [at for span in case.spans for at in range(span.start, span.end)]
    for first, spans in runs(case.spans, parts, case.window):
        assert first == row and spans[0].first == 0
        seen = [at for span in spans for at in range(span.start, span.end)]
        assert seen == positions[row : row + len(seen)] and spans[-1].last == len(seen)
        tasks = plan(spans, case.block, 1, case.window)
        assert tasks.parts <= parts or len(seen) == 1
        row += len(seen)
    assert row == case.tokens


@pytest.mark.parametrize("length", [8192, 32768])
def test_long_contexts_are_those_of_float64_and_take_bounded_memory(monkeypatch, length):
    """33 rows of 2 heads whose parts fill two waves."""
    rows = 33
    monkeypatch.setattr(attend, "PARTS", 17 * 2 * (length // CHUNK) * 66)
    table = np.random.default_rng(0).permutation(length // 32).tolist()
    case = Case([Span(0, rows, length - rows, table)], 32, 2, 1, 64, None)
    case.query *= 0.3  # so that many keys have a say
    out, sums = case.run(case.spans)
    assert case.cores._kept["parts"].size <= attend.PARTS
    true_out, true_sums = case.truth()
    torch.testing.assert_close(out.double(), true_out, atol=1e-5, rtol=0)
    torch.testing.assert_close(sums.double(), true_sums, atol=1e-5, rtol=0)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is promised, not taken, on Linux only")
def test_blocks_beyond_two_to_the_31_elements_are_found():
    """Of 2 * 9 GB only the pages of a few blocks are ever touched."""
    shape = (2**31 // (16 * 2 * 64) + 9, 16, 2, 64)
    size = 4 * int(np.prod(shape))
    never_reserved = 0x4000  # MAP_NORESERVE, which Python names from 3.13 on
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | never_reserved
    huge = [torch.frombuffer(mmap.mmap(-1, size, flags), dtype=torch.float32).view(shape) for _ in range(2)]
    assert huge[0].numel() > 2**31
    small = Case([Span(0, 20, 70, [0, 1, 2, 3, 4, 5])], 16, 6, 2, 64, None)
    table = [shape[0] - 1, 0, shape[0] - 3, shape[0] // 2, shape[0] // 2 + 1, shape[0] - 2]
    large = copy.copy(small)
    large.spans, (large.keys, large.values) = [Span(0, 20, 70, table)], huge
    for slot, place in enumerate(table):
        large.keys[place], large.values[place] = small.keys[slot], small.values[slot]
    out, sums = small.run(small.spans)
    assert out.isfinite().all()
    large_out, large_sums = large.run(large.spans)
    assert torch.equal(large_out, out) and torch.equal(large_sums, sums)
    assert torch.equal(large.keys[table[5], :10], small.keys[5, :10])


def test_layers_of_several_windows_leave_what_others_own_alone():
    """A layer that needs more scratch memory comes between two of another window."""
    start, rows = 3000, 60
    case = Case([Span(0, rows, start, list(range(-(-(start + rows) // 16))))], 16, 8, 2, 64, None)
    lent = team.torch_team()
    assert lent is not None
    batch = CoresBatch(Cores(lent), case.spans, 16, np.arange(start, start + rows))
    given = (case.keys, case.values, case.query, case.key, case.value, 0.125)
    first, _ = batch.attend(*given, 20)
    batch.attend(*given, None)
    others = [np.zeros(8 * rows * 66, np.float32) for _ in range(200)]
    again, _ = batch.attend(*given, 20)
    assert torch.equal(again, first)
    assert not any(other.any() for other in others)


def test_what_nobody_can_see_has_no_weight():
    """A window that has passed by: huge hidden scores leave no trace."""
    case = Case([Span(0, 1, 90, list(range(6)))], 16, 2, 1, 16, 5)
    case.keys[:5] = 1e15
    case.values[:5] = 1e15
    out, _ = case.run(case.spans)
    assert float(out.abs().max()) < 10


@settings(max_examples=30, deadline=None)
@given(cases(), st.integers(1, 9))
def test_every_lane_sees_its_keys_once_and_the_workers_share_all_tasks(case, workers):
    group = case.heads // case.kv_heads
    tasks = plan(case.spans, case.block, group, case.window)
    dealt = shares(tasks.costs, case.kv_heads, workers)
    seen: list[list[int]] = [[] for _ in range(case.tokens * group)]
    parts: list[set[int]] = [set() for _ in range(case.tokens * group)]
    for first, last, table, low, high, part in tasks.tasks.tolist():
        assert 0 < last - first <= kernel.TILE and 0 < high - low <= CHUNK
        for number, at in enumerate(range(first, last)):
            row = tasks.rows[at // group]
            lane = row * group + at % group
            parts[lane].add(part + number)
            oldest = 0 if case.window is None else tasks.positions[row] + 1 - case.window
            for position in range(low, high):
                if oldest <= position <= tasks.positions[row]:
                    slot = tasks.tables[table + position // case.block]
                    seen[lane].append(slot * case.block + position % case.block)
    for span in case.spans:
        for row in range(span.first, span.last):
            end = span.start + row - span.first + 1
            start = 0 if case.window is None else max(0, end - case.window)
            wanted = [span.slots[at // case.block] * case.block + at % case.block for at in range(start, end)]
            for lane in range(row * group, (row + 1) * group):
                assert sorted(seen[lane]) == sorted(wanted)
                found = tasks.lane_parts[tasks.lane_starts[lane] : tasks.lane_starts[lane + 1]]
                assert set(found.tolist()) == parts[lane]
    assert dealt[0] == 0 and dealt[-1] == len(tasks.tasks) * case.kv_heads
    assert (np.diff(dealt) >= 0).all() and len(dealt) == workers + 1
