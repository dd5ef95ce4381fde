"""Runs of blocks against the same log block by block, and against plain dictionaries of prefixes."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtool.analysis import spool
from kvtool.analysis.analyze import sweep
from kvtool.analysis.build import build_runs
from kvtool.analysis.curve import LruCurve
from kvtool.analysis.hit_rates import hit_rates
from kvtool.analysis.prefixes import hot_prefixes, usage
from kvtool.analysis.runs import runs_of
from kvtool.analysis.sessions import infer_sessions
from kvtool.analysis.trie import BlockTrie
from kvtool.requests import BlockIds, Request, Source

LOGS = st.lists(
    st.tuples(st.lists(st.integers(0, 1), max_size=24), st.sampled_from("ab"), st.sampled_from([None, "s"])),
    max_size=20,
)


class Ids:
    """Stands in for an encoder: prompts are token ids already."""

    fingerprint = "ids"

    def encode(self, requests):
        return [each.token_ids for each in requests]


def requests_of(rows, trace=False, size=2):
    for row, (tokens, model, session) in enumerate(rows):
        if trace:  # an id names the prefix; every second prompt ends in a partial block of its own id
            ids = [int("1" + "".join(map(str, tokens[: end + 1])), 2) for end in range(len(tokens))]
            cut = row % 2 * bool(ids)
            ids[-1:] = [-one if cut else one for one in ids[-1:]]
            prompt = {"block_ids": BlockIds(np.array(ids, np.int64), size, size * len(ids) - cut)}
        else:
            prompt = {"token_ids": np.array(tokens, np.uint32)}
        yield Request(id="", source=Source("log", row), model=model, session=session, **prompt)


def build(rows, trace=False):
    return build_runs(requests_of(rows, trace), None if trace else Ids(), 2)


@given(LOGS)
def test_runs_end_where_prompts_part_or_end(rows):
    """No run could be longer: each end is some prompt's last block, or has two continuations."""
    runs = build(rows)
    prefixes = {
        (model, tuple(tokens[: end + 2])) for tokens, model, _ in rows for end in range(0, len(tokens) - 1, 2)
    }
    ends = {(model, tuple(tokens[: len(tokens) // 2 * 2])) for tokens, model, _ in rows if len(tokens) > 1}
    continued = [(model, prefix[:-2]) for model, prefix in prefixes]
    forks = {one for one in continued if continued.count(one) > 1 and one[1]}
    found = {
        (runs.spaces[runs.node_space[run]][0], tuple(runs.prefix_of(run).tolist()))
        for run in range(len(runs.parent))
    }
    assert found == ends | forks
    assert runs.distinct_blocks == len(prefixes)


@given(LOGS, st.booleans(), st.sampled_from([1, 2, 3]))
def test_every_figure_is_that_of_the_log_block_by_block(rows, trace, factor):
    runs = build(rows, trace).coarser(2 * factor)
    blocks = runs.unfolded()
    assert runs.distinct_blocks == blocks.distinct_blocks == len({*blocks.nodes.tolist()})
    assert runs.lengths.tolist() == blocks.lengths.tolist()
    ours, theirs = hit_rates(runs), hit_rates(blocks)
    assert ours.matched.tolist() == theirs.matched.tolist()
    assert ours.within_session_tokens == theirs.within_session_tokens
    counts, each = usage(runs), usage(blocks)
    last = runs.last_blocks
    for name in ("requests", "sessions", "first", "last"):
        assert getattr(counts, name).tolist() == getattr(each, name)[last[:-1]].tolist()
    assert [(last[one.node], one.saved, one.requests) for one in hot_prefixes(runs, counts)] == [
        (one.node, one.saved, one.requests) for one in hot_prefixes(blocks, each)
    ]
    assert infer_sessions(runs).session.tolist() == infer_sessions(blocks).session.tolist()
    curve, plain = LruCurve(runs), LruCurve(blocks)
    for capacity in range(blocks.distinct_blocks + 2):
        assert curve.at(capacity) == plain.at(capacity)
    assert [runs.hash_of(run) for run in range(len(runs.parent))] == [
        bytes(blocks.hashes[block]) for block in last[:-1]
    ]


@given(LOGS, st.booleans())
def test_a_sweep_over_runs_is_one_over_blocks(rows, trace):
    runs = build(rows, trace)
    assert sweep(runs, (2, 6)) == sweep(runs_of(runs.unfolded()), (2, 6))


@given(LOGS, st.integers(1, 9), st.sampled_from([1, 3]), st.booleans())
def test_pieces_are_the_blocks_in_order(rows, most, factor, trace):
    runs = build(rows, trace).coarser(2 * factor)
    whole = runs.unfolded()
    pieces = list(runs.pieces(most))
    for name in ("parent", "depth", "words"):
        joined = np.concatenate([getattr(piece, name) for piece in pieces])
        assert joined.tolist() == getattr(whole, name).tolist()
    spans = np.bincount(np.concatenate([piece.run for piece in pieces]), minlength=len(runs.parent))
    assert all(len(piece.run) <= max(most, spans.max(initial=0)) for piece in pieces)


@given(LOGS)
def test_only_the_blocks_in_use(rows):
    runs = build(rows)
    part = runs.select(len(rows) // 2, len(rows))
    used, whole = part.unfolded(used=True), part.unfolded()
    assert used.distinct_blocks == len({*whole.nodes.tolist()})
    assert used.hashes[used.nodes].tolist() == whole.hashes[whole.nodes].tolist()


@given(LOGS, st.booleans())
def test_words_on_disk_are_those_in_memory(rows, trace):
    """With a spool that keeps next to nothing in memory."""
    requests = list(requests_of(rows, trace))
    plain = build_runs(requests, None if trace else Ids(), 2).unfolded()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "KEPT", 8)
        patch.setattr("kvtool.analysis.build.BlockTrie", lambda width: BlockTrie(width, runs=0))
        spilled = build_runs(requests, None if trace else Ids(), 2)
        assert (spilled.unfolded().words == plain.words).all()
        assert spilled.unfolded().parent.tolist() == plain.parent.tolist()


def test_a_long_log_takes_the_room_on_disk_it_needs():
    """A prompt many times longer than what is kept, twice: the second time nothing is added."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "KEPT", 1000)
        trie = BlockTrie(4, runs=1)
        words = np.arange(50_000, dtype=np.uint32)
        for _ in range(2):
            trie.insert(words, np.array([0, 50_000]), np.zeros(1, np.int32))
        assert (trie.size, trie.blocks) == (1, 12_500)
        assert (np.ravel(trie.words) == words).all()
        changed = words.copy()
        changed[30_001] = 0
        end = trie.insert(changed, np.array([0, 50_000]), np.zeros(1, np.int32))
        assert trie.depth[end[0]] == 12_499 and trie.blocks == 12_500 + 5_000


def test_a_full_disk_is_an_error_with_a_way_out(monkeypatch):
    from kvtool.errors import KvtoolError

    def full(descriptor, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spool, "_extend", full)
    store = spool.Spool(4, kept=8)
    with pytest.raises(KvtoolError, match="No space left on device: no room for the token ids") as caught:
        store.reserve(9, 0)
    assert "TMPDIR" in caught.value.hint


def test_a_curve_of_many_blocks_is_exact_at_its_steps(monkeypatch):
    random = np.random.default_rng(5)
    rows = [(random.integers(0, 2, int(random.integers(2, 40))).tolist(), "a", None) for _ in range(200)]
    runs = build(rows)
    plain = LruCurve(runs)
    monkeypatch.setattr("kvtool.analysis.curve.MOST_STEPS", 100)
    coarse = LruCurve(runs)
    assert coarse.step > 2
    for capacity in range(0, runs.distinct_blocks, coarse.step):
        assert coarse.at(capacity).hit_blocks == plain.at(capacity).hit_blocks
        assert coarse.at(capacity).tokens == plain.at(capacity).tokens
    assert coarse.at(runs.distinct_blocks + coarse.step).tokens == plain.at(runs.distinct_blocks).tokens
    assert 0 <= coarse.capacity_for(0.9) - plain.capacity_for(0.9) < coarse.step


@given(LOGS)
def test_large_blocks_are_put_together_part_by_part(rows):
    runs = build(rows).coarser(6)
    plain = runs.unfolded()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "KEPT", 8)
        patch.setattr("kvtool.analysis.runs.AT_ONCE", 2)
        assert (runs.unfolded().words == plain.words).all()


def test_pages_are_let_go_of_and_come_back():
    store = spool.Spool(0, kept=1 << 20)
    store.reserve(1 << 24, 0)
    store.words[:] = 7
    view = store.words[5:].reshape(-1, 1)

    def mapped():
        with open("/proc/self/smaps_rollup") as lines:  # noqa: PTH123
            return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))

    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("only Linux tells how much of a mapping is in memory")
    before = mapped()
    spool.let_go(view)
    assert mapped() < before - 50_000, "64 MiB lay in memory"
    assert (view == 7).all()
    spool.let_go(np.zeros(3, np.uint32))
