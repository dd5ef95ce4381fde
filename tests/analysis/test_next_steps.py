"""Steps are commands that a shell and kvtool take as they stand."""

import shlex

import pytest

from kvtool.analysis.next_steps import next_steps, target
from kvtool.cli import COMMANDS, main

NASTY = "logs/a b'c $(touch hacked);&.jsonl"


def document(**changes):
    return {
        "tokenizer": {"chat_template": "auto"},
        "hit_rate": {"tokens": 0.1, "normalized_tokens": 0.9},
        "hot_prefixes": [{"tokens": 64}],
        "advice": [
            {"code": "fix-prompts", "text": "fix"},
            {"code": "capacity", "text": "room"},
            {"code": "block-size", "text": "blocks", "evidence": {"best": {"block_size": 16}}},
            {"code": "routing", "text": "route"},
        ],
        **changes,
    }


OPTIONS = [
    ("--map", "messages=body"),
    ("--format", "openai-chat"),
    ("--tokenizer", "my models/tok"),
    ("--where", "model = 'x'"),
    ("--share-tenants", ""),
]


def parsed(line):
    """The command's name and what click makes of the rest."""
    words = shlex.split(line)
    assert words[0] == "kvtool"
    # Below `main`: a command keeps the first --help that a context gave it.
    above = main.make_context("kvtool", [], resilient_parsing=True)
    context = COMMANDS.load(words[1]).make_context(words[1], words[2:], parent=above)
    return words[1], context.params


def test_every_step_can_be_pasted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what earlier steps would have written
    (tmp_path / "shards").mkdir()
    (tmp_path / "normalizer.json").touch()
    steps = next_steps(document(), [NASTY], OPTIONS)
    lines = [parsed(step.command) for step in steps]
    assert [name for name, _ in lines] == [
        "normalize", "lint", "simulate", "analyze", "simulate", "prewarm", "serve",
    ]  # fmt: skip
    for name, params in lines[:5]:
        assert list(params["paths" if name == "lint" else "logs"]) == [NASTY]
        assert params["format"] == "openai-chat" and params["tokenizer"] == "my models/tok"
    for _, params in (lines[2], lines[3], lines[4]):
        assert params["where"] == "model = 'x'" and params["share_tenants"] is True
    assert str(lines[0][1]["output"]) == "a b'c $(touch hacked);&.normalized.jsonl"
    assert lines[1][1]["min_hit_rate"] == pytest.approx(0.81)
    assert lines[3][1]["block_sizes"] == (16,)
    assert list(lines[5][1]["logs"]) == [NASTY] and lines[5][1]["mapping"] == {"messages": "body"}
    assert str(lines[6][1]["normalizer"]) == "normalizer.json"


def test_a_trace_has_no_prompts_to_repair_or_store():
    steps = next_steps(document(tokenizer={"chat_template": None}), ["trace.jsonl"], [])
    assert [shlex.split(step.command)[1] for step in steps] == ["simulate", "analyze", "simulate"]


def test_nothing_to_fix_keeps_the_gate_and_serves_without_rules():
    steps = next_steps(document(hit_rate={"tokens": 0.5, "normalized_tokens": 0.505}), ["a.jsonl"], [])
    commands = [step.command for step in steps]
    assert commands[0] == "kvtool lint a.jsonl --min-hit-rate 45%"
    assert commands[-1] == "kvtool serve --shards shards"


def test_a_log_that_hides_its_prompts_is_the_first_thing_to_mend():
    advice = [{"code": "incomplete-log", "text": "log it all"}]
    first = next_steps(document(advice=advice), ["a.jsonl"], [])[0]
    assert (first.title, first.command) == ("Log whole prompts", "")


@pytest.mark.parametrize(
    ("logs", "wanted"),
    [
        (["x/log.jsonl.gz"], "log.normalized.jsonl.gz"),
        (["a.jsonl", "b.jsonl"], "normalized"),
        (["logs/*.jsonl"], "normalized"),
        (["folder"], "normalized"),
    ],
)
def test_where_normalize_would_write(logs, wanted):
    assert target(logs) == wanted
