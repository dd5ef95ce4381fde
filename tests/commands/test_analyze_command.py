"""kvtool analyze from the outside: JSON of the contract, gates, outputs, no torch."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from kvtool.analysis.analyze import AnalyzeConfig, analyze
from kvtool.cli import main
from kvtool.commands.analyze import lint
from kvtool.logs.reader import open_log
from kvtool.tokens import load_encoder

SAMPLES = Path(__file__).parents[2] / "samples"
FIELDS = [
    "schema", "source", "tokenizer", "block_size", "tokens", "hit_rate", "block_sizes", "capacity",
    "hot_prefixes", "findings", "advice",
]  # fmt: skip


def kvtool(*arguments):
    return CliRunner().invoke(main, ["analyze", *map(str, arguments)])


@pytest.fixture
def chat(tmp_path):
    """Two sessions of two turns behind a clock in the system prompt; a bad row among them."""
    rows = []
    for turn in range(2):
        for session in "ab":
            system = f"Time: 2024-05-15 15:0{len(rows)}:11. " + "Policy: be kind. " * 60
            history = [
                {"role": "user", "content": f"Hello from {session}, turn {n}. " * 20} for n in range(turn + 1)
            ]
            rows.append(
                {
                    "model": "m",
                    "session_id": session,
                    "timestamp": f"2024-05-15T15:0{len(rows)}:11Z",
                    "messages": [{"role": "system", "content": system}, *history],
                }
            )
    path = tmp_path / "chat.jsonl"
    path.write_text("\n".join([*(json.dumps(row) for row in rows), "{broken"]) + "\n")
    return path


def test_json_has_the_fields_of_the_contract_and_the_same_bytes_twice(chat):
    first = kvtool(chat, "--tokenizer", "bytes", "--output-format", "json")
    assert first.exit_code == 0, first.output
    document = json.loads(first.stdout)
    assert list(document) == FIELDS
    assert document["source"]["requests"] == 4 and document["source"]["sessions"] == 2
    assert document["source"]["skipped"][0]["rows"] == 1
    assert document["hit_rate"]["normalized_tokens"] > document["hit_rate"]["tokens"]
    assert document["findings"][0]["code"] == "KV101", "the clock costs most"
    assert kvtool(chat, "--tokenizer", "bytes", "--output-format", "json").stdout == first.stdout


def test_gates(chat):
    options = (chat, "--tokenizer", "bytes")
    assert kvtool(*options, "--min-hit-rate", "95%").exit_code == 1
    assert kvtool(*options, "--min-hit-rate", "0").exit_code == 0
    assert kvtool(*options, "--min-hit-rate", "7").exit_code == 2
    assert kvtool(*options, "--fail-on", "KV101").exit_code == 1
    assert kvtool(*options, "--fail-on", "KV2").exit_code == 0
    assert kvtool(*options, "--fail-on", "clock-time").exit_code == 1
    assert kvtool(*options, "--fail-on", "KV999").exit_code == 2, "a gate that can never close is a mistake"
    both = kvtool(*options, "--fail-on", "error", "--min-hit-rate", "95%")
    assert both.exit_code == 1
    said = " ".join(both.stdout.split())
    assert re.search(r"note: failed: (1 finding|2 findings) \(--fail-on error\)", said)
    assert re.search(r"note: failed: hit rate \d+\.\d% is below 95\.0%", said)


def test_the_log_is_never_written_over(chat):
    before = chat.read_bytes()
    result = kvtool(chat, "--tokenizer", "bytes", "-o", chat)
    assert result.exit_code == 2
    assert "is an input" in result.stderr
    assert chat.read_bytes() == before


def test_a_block_hash_trace_against_an_independent_count(tmp_path):
    """Random cumulative ids; rates recomputed here with a dictionary."""
    random = np.random.default_rng(3)
    known, rows = {}, []
    for number in range(200):
        path = [0, *random.integers(0, 3, random.integers(0, 5)), number]
        tokens = 512 * len(path) - int(random.integers(0, 511))
        ids = [known.setdefault(tuple(path[: i + 1]), len(known)) for i in range(len(path))]
        rows.append({"timestamp": number, "input_length": tokens, "output_length": 1, "hash_ids": ids})
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    document = json.loads(kvtool(file, "--output-format", "json").stdout)
    seen, saved, matched = set(), 0, []
    for row in rows:
        k = next((i for i, name in enumerate(row["hash_ids"]) if name not in seen), len(row["hash_ids"]))
        saved += min(k, (row["input_length"] - 1) // 512) * 512
        matched.append(k)
        seen.update(row["hash_ids"])
    total = sum(row["input_length"] for row in rows)
    lengths = [len(row["hash_ids"]) for row in rows]
    assert document["hit_rate"]["tokens"] == round(saved / total, 6)
    assert document["hit_rate"]["blocks"] == round(sum(matched) / sum(lengths), 6)
    assert document["hit_rate"]["request_mean"] == round(float(np.mean(np.divide(matched, lengths))), 6)


def test_terminal_and_markdown_show_the_same_rate(chat):
    document = json.loads(kvtool(chat, "--tokenizer", "bytes", "--output-format", "json").stdout)
    rate = f"{document['hit_rate']['tokens']:.1%}"
    assert rate in kvtool(chat, "--tokenizer", "bytes").stdout
    markdown = kvtool(chat, "--tokenizer", "bytes", "--output-format", "markdown").stdout
    assert rate in markdown and "### Block sizes" in markdown and "**KV101 clock-time**" in markdown


def test_output_is_an_analysis_and_errors_are_one_line(chat, tmp_path):
    from kvtool.analysis.store import load_analysis, load_document

    output = tmp_path / "a.duckdb"
    shown = kvtool(chat, "--tokenizer", "bytes", "--output-format", "json", "-o", output)
    assert load_document(output) == json.loads(shown.stdout)
    assert load_analysis(output).requests == 4
    broken = kvtool(chat, "--where", "nonsense(")
    assert broken.exit_code == 2 and "kvtool: error: --where nonsense(" in broken.stderr
    assert kvtool(tmp_path / "none.jsonl").exit_code == 2


def test_analyze_works_where_torch_cannot_be_imported(chat):
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['kvtool', 'analyze', sys.argv[1]];"
        "from kvtool.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(chat)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "hit rate" in done.stdout


def test_help_has_an_example_and_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['kvtool', 'analyze', '--help']\n"
        "from kvtool.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numba', 'duckdb', 'pyarrow', 'transformers', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Example: kvtool analyze" in done.stdout


def test_fixes_of_the_requests_that_lint_has_read_count_within_the_whole_log(tmp_path):
    """256 prompts behind a clock are read by lint, 512 that share nothing are beyond what it holds."""
    policy = "Policy: be kind to everybody. " * 60
    rows = [f"Time: 2024-05-15 15:{n // 60:02}:{n % 60:02}. {policy}" for n in range(256)]
    rows += [f"{n * 7919} " * 400 for n in range(512)]
    path = tmp_path / "log.jsonl"
    path.write_text(
        "".join(
            json.dumps({"messages": [{"role": "system", "content": text}, {"role": "user", "content": "x"}]})
            + "\n"
            for text in rows
        )
    )
    analysis = analyze(
        open_log([str(path)]), lambda: load_encoder("bytes"), AnalyzeConfig(held_tokens=1), lambda _: None
    )
    assert len(analysis.held) == 256 and analysis.rates.tokens < 0.01
    priced, normalized = lint(analysis, share_tenants=False)
    share = analysis.workload.prompt_tokens[:256].sum() / analysis.rates.prompt_tokens
    assert priced[0].finding.code == "KV101" and share < 0.5
    assert 0.9 * share < normalized < share
