"""analyze over streams of requests: sweep, filter, sessions, what is held, what is said."""

import json
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtool.analysis.analyze import AnalyzeConfig, analyze, sweep
from kvtool.analysis.build import build_runs
from kvtool.analysis.hit_rates import hit_rates
from kvtool.errors import KvtoolError
from kvtool.logs import traces
from kvtool.logs.reader import open_log
from kvtool.requests import BlockIds, Request, Source
from kvtool.templates import ChatMLTools, JinjaTemplate
from kvtool.tokens import BytesTokenizer, PromptEncoder

ENCODER = PromptEncoder(BytesTokenizer(), ChatMLTools())


def texts(*prompts, **fields):
    return [
        Request(id=f"r{row}", source=Source("log.jsonl", row + 1), text=text, **fields)
        for row, text in enumerate(prompts)
    ]


@given(
    st.lists(st.lists(st.integers(0, 1), max_size=40), max_size=12),
    st.lists(st.sampled_from([2, 6, 12, 20]), max_size=2),
)
def test_sweep_equals_a_workload_per_size(prompts, asked):
    requests = [
        Request(id="", source=Source("t", row), token_ids=np.array(tokens, np.uint32))
        for row, tokens in enumerate(prompts)
    ]
    rows = sweep(build_runs(requests, ENCODER, 2), asked)
    assert [row["block_size"] for row in rows] == sorted({8, 16, 32, 64, 128, 256, *asked})
    for row in rows:
        fresh = build_runs(requests, ENCODER, row["block_size"])
        assert row["distinct_blocks"] == fresh.distinct_blocks
        assert row["tokens"] == pytest.approx(hit_rates(fresh).tokens, abs=1e-6)


def test_a_trace_needs_no_encoder_and_keeps_its_block_size():
    def refuse():
        raise AssertionError("an encoder was loaded for a trace")

    rows = [
        Request(id="", source=Source("t", i), block_ids=BlockIds(np.array(ids), 16, 16 * len(ids)))
        for i, ids in enumerate([[0, 1, 2], [0, 1, 3], [0, 4, 5]])
    ]
    analysis = analyze(rows, refuse, AnalyzeConfig())
    assert analysis.workload.block_size == 16
    assert [row["block_size"] for row in analysis.block_sizes] == [16, 32, 64]
    assert analysis.rates.saved.tolist() == [0, 32, 16]
    assert analysis.held == []
    with pytest.raises(KvtoolError, match="--block-size 24: the trace's blocks have 16 tokens"):
        analyze(rows, refuse, AnalyzeConfig(block_sizes=(24,)))


def test_where_filters_and_says_so():
    requests = texts("a" * 400, "b" * 400, "a" * 400)
    analysis = analyze(requests, lambda: ENCODER, AnalyzeConfig(where="row <> 2 AND prompt_tokens = 100"))
    assert analysis.workload.requests == 2
    assert analysis.rates.saved.tolist() == [0, 96]
    assert any("kept 2 of 3 requests" in note for note in analysis.notes)
    with pytest.raises(KvtoolError, match="no request is left of 3"):
        analyze(requests, lambda: ENCODER, AnalyzeConfig(where="false"))
    with pytest.raises(KvtoolError, match="--where colour = 1"):
        analyze(requests, lambda: ENCODER, AnalyzeConfig(where="colour = 1"))
    with pytest.raises(KvtoolError, match="--where"):
        analyze(
            requests,
            lambda: ENCODER,
            AnalyzeConfig(where="id IN (SELECT content FROM read_text('/etc/passwd'))"),
        )


def test_sessions_are_inferred_only_where_none_is_named():
    turn = "x" * 600
    named = texts(turn, turn + "y" * 600, session="s")
    assert analyze(named, lambda: ENCODER, AnalyzeConfig()).workload.session_names == ["s"]
    anonymous = analyze(texts(turn, turn + "y" * 600), lambda: ENCODER, AnalyzeConfig())
    assert anonymous.workload.session.tolist() == [0, 0]
    assert any("inferred" in note for note in anonymous.notes)


def test_requests_are_held_for_lint_in_order_of_arrival_and_not_beyond_the_bound():
    requests = [
        Request(id=f"r{row}", source=Source("t", row), text="z" * 400, arrival=arrival)
        for row, arrival in enumerate([30, 10, 20])
    ]
    analysis = analyze(requests, lambda: ENCODER, AnalyzeConfig())
    assert [request.id for request in analysis.held] == ["r1", "r2", "r0"]
    bounded = analyze(requests * 200, lambda: ENCODER, AnalyzeConfig(held_tokens=1))
    assert 0 < len(bounded.held) < 600
    assert any(f"first {len(bounded.held)} of 600" in note for note in bounded.notes)


def test_previews_end_where_the_prefix_ends():
    head = "You are a helpful agent. " * 20
    analysis = analyze(texts(head + "one" * 60, head + "two" * 60), lambda: ENCODER, AnalyzeConfig())
    (row,) = analysis.prefix_rows()
    assert row["tokens"] == len(head) // 4 // 32 * 32
    assert head[: row["tokens"] * 4].endswith(row["preview"]) and len(row["preview"]) == 160
    assert row["hash"] == analysis.workload.hash_of(row["node"]).hex()


def test_capacity_rows_never_fall():
    analysis = analyze(texts(*(("ab" * i) * 50 for i in range(12))), lambda: ENCODER, AnalyzeConfig())
    rows = analysis.capacity_rows()
    assert all(low["tokens"] <= high["tokens"] for low, high in pairwise(rows))
    assert rows[-1]["tokens"] == round(analysis.rates.tokens, 6)


def test_requests_that_the_chat_template_refuses_are_counted_like_bad_rows(tmp_path):
    source = (
        "{% for m in messages %}{% if loop.index0 and m.role == messages[loop.index0 - 1].role %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    encoder = PromptEncoder(BytesTokenizer(), JinjaTemplate(source, "strict.jinja"))
    path = tmp_path / "log.jsonl"
    asked = [{"role": "user", "content": "hello " * 50}]
    path.write_text("".join(json.dumps({"messages": asked * times}) + "\n" for times in (1, 2, 1, 3, 1)))
    log = open_log([str(path)])
    found = analyze(log, lambda: encoder, AnalyzeConfig())
    assert found.workload.meta["row"].to_pylist() == [1, 3, 5]
    assert [(one.reason, one.rows, one.first) for one in log.skipped] == [
        ("chat template strict.jinja: roles must alternate", 2, f"{path}:2")
    ]
    path.write_text(json.dumps({"messages": asked * 2}) + "\n")
    with pytest.raises(KvtoolError, match="roles must alternate"):
        analyze(open_log([str(path)]), lambda: encoder, AnalyzeConfig())


def _trace(path, rows):
    lines = (
        f'{{"timestamp": {n * 100}, "input_length": {512 * (1 + n % 5)}, "output_length": 7, '
        f'"hash_ids": {[n % 3 * 10 + at for at in range(1 + n % 5)]}}}\n'
        for n in range(rows)
    )
    path.write_text("".join(lines))
    return str(path)


def test_a_trace_that_is_parsed_ahead_is_the_same_workload(tmp_path, monkeypatch):
    path = _trace(tmp_path / "trace.jsonl", 3000)
    whole = analyze(list(open_log([path])), None, AnalyzeConfig()).runs
    monkeypatch.setattr(traces, "CHUNK", 5000)
    seen = []
    parsed = analyze(open_log([path]), None, AnalyzeConfig(), seen.append).runs
    assert len(seen) > 20 and seen == sorted(seen) and seen[-1] == 3000
    for name in ("leaf", "parent", "depth", "first", "prompt_tokens", "arrival"):
        assert np.array_equal(getattr(parsed, name), getattr(whole, name)), name


def test_an_interrupted_or_faulty_pass_leaves_no_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "CHUNK", 5000)
    path = _trace(tmp_path / "trace.jsonl", 3000)

    def interrupt(seen):
        if seen > 500:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        analyze(open_log([path]), None, AnalyzeConfig(), interrupt)
    with Path(path).open("a") as log:
        log.write('{"timestamp": 1, "input_length": 512, "hash_ids": "no list"}\n')
    with pytest.raises(KvtoolError, match=r"trace\.jsonl:3001"):
        analyze(open_log([path], strict=True), None, AnalyzeConfig())
    assert not [thread for thread in threading.enumerate() if thread.name == "kvtool-ahead"]
