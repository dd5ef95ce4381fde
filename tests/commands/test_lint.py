"""kvtool lint: exit codes, selection, settings, baseline, ignores, redaction, formats."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from kvtool.cli import main

SAMPLES = Path(__file__).resolve().parent.parent.parent / "samples"
LOG = str(SAMPLES / "airline-chat.jsonl")
RULES = "Never invent a price. Ask before you book. Hand over to a person when you cannot help. " * 4
TEMPLATE = f"It is {{{{ now() }}}} in Lisbon.\n{RULES}\nToday is {{{{ today }}}}.\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kvtool.toml").write_text('tokenizer = "bytes"\n')
    (tmp_path / "prompt.j2").write_text(TEMPLATE)
    return tmp_path


def lint(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["lint", *arguments])


def document(*arguments: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(lint(*arguments, "--output-format", "json").stdout)
    return loaded


def codes(*arguments: str) -> list[str]:
    return sorted(finding["code"] for finding in document(*arguments)["findings"])


def test_findings_are_exit_1_and_clean_is_0(folder: Path) -> None:
    assert lint("prompt.j2").exit_code == 1
    assert lint("prompt.j2", "--exit-zero").exit_code == 0
    assert lint("prompt.j2", "--fail-on", "error").exit_code == 0
    assert lint("prompt.j2", "--fail-on", "KV1").exit_code == 1
    assert lint("prompt.j2", "--fail-on", "clock-time").exit_code == 1
    assert lint("prompt.j2", "--fail-on", "tool-order").exit_code == 0
    (folder / "clean.txt").write_text(f"{RULES}\nToday is {{date}}.")
    clean = lint("clean.txt")
    assert (clean.exit_code, clean.stdout.splitlines()[0]) == (0, "0 findings in 0 logs and 1 template")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing-here.jsonl"], "no such file"),
        (["prompt.j2", "--select", "KV9"], "no rule 'KV9'"),
        (["prompt.j2", "--baseline", "none.json"], "none.json"),
        (["--explain", "KV999"], "no rule 'KV999'"),
        (["prompt.j2", "--fail-on", "erorr"], "--fail-on: no rule 'erorr'"),
        (["prompt.j2", "--output-file", "prompt.j2"], "prompt.j2 is an input"),
        (["prompt.j2", "--write-baseline", "prompt.j2"], "prompt.j2 is an input"),
        (["prompt.j2", "--max-regression", "1"], "--max-regression: no baseline"),
        (["prompt.j2", "--unsafe-fixes"], "--unsafe-fixes alone fixes nothing"),
    ],
)
def test_bad_input_is_exit_2_in_one_line(arguments: list[str], message: str) -> None:
    result = lint(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_logs_and_templates_in_one_run() -> None:
    found = document("prompt.j2", LOG)
    assert sorted({one["code"] for one in found["findings"]}) == ["KV101", "KV201"]
    assert found["source"] == {"logs": [LOG], "templates": ["prompt.j2"]}
    assert 0 < found["hit_rate"]["tokens"] < 0.5


def test_selection_by_prefix_and_name() -> None:
    assert codes(LOG, "--select", "KV2") == ["KV201"]
    assert codes(LOG, "--ignore", "tool-order") == ["KV101"]
    assert codes(LOG, "--ignore", "KV1,KV2") == []
    assert codes(LOG, "--select", "KV101", "--extend-select", "KV201") == ["KV101", "KV201"]
    assert codes(LOG, "--select", "KV1", "--ignore", "KV101") == []


def test_settings_come_from_the_nearest_file_and_unknown_ones_are_errors(folder: Path) -> None:
    (folder / "kvtool.toml").write_text('tokenizer = "bytes"\nignore = ["KV101"]\n')
    assert codes(LOG) == ["KV201"]
    (folder / "kvtool.toml").unlink()
    (folder / "pyproject.toml").write_text('[tool.kvtool]\ntokenizer = "bytes"\nselect = ["KV1"]\n')
    assert codes(LOG) == ["KV101"]
    wrong = (
        'colour = "red"',
        'ignore = ["KV9"]',
        'ignore = "KV101"',
        'fail-on = "erorr"',
        "min-hit-rate = 40",
    )
    for line in wrong:
        (folder / "kvtool.toml").write_text(line)
        result = lint("prompt.j2")
        assert result.exit_code == 2
        assert "kvtool.toml" in result.output


def test_a_baseline_hides_what_is_known_whatever_the_row(folder: Path) -> None:
    assert lint(LOG, "--write-baseline", "known.json").exit_code == 0
    rows = Path(LOG).read_text().splitlines(keepends=True)
    (folder / "later.jsonl").write_text("".join(rows[7:]))
    result = document("later.jsonl", "--baseline", "known.json")
    assert (result["findings"], result["known"], result["failures"]) == ([], 2, [])
    again = lint("prompt.j2", LOG, "--baseline", "known.json")
    assert again.exit_code == 1
    assert "prompt.j2" in again.stdout


def test_gates(folder: Path) -> None:
    assert lint(LOG, "--ignore", "ALL", "--min-hit-rate", "1%").exit_code == 0
    assert lint(LOG, "--ignore", "ALL", "--min-hit-rate", "90%").exit_code == 1
    (folder / "known.json").write_text('{"schema": "kvtool.baseline/1", "hit_rate": 0.99, "findings": {}}')
    regression = lint(LOG, "--ignore", "ALL", "--baseline", "known.json", "--max-regression", "2")
    assert regression.exit_code == 1
    assert "hit rate fell by" in regression.output
    unread = lint("prompt.j2", "--ignore", "ALL", "--baseline", "known.json", "--max-regression", "2")
    assert unread.exit_code == 1
    assert "hit rate unknown: name the logs" in unread.output


def test_a_baseline_without_a_log_cannot_gate_a_regression() -> None:
    assert lint("prompt.j2", "--write-baseline", "known.json").exit_code == 0
    gate = lint(LOG, "--ignore", "ALL", "--baseline", "known.json", "--max-regression", "2")
    assert gate.exit_code == 2
    assert "known.json holds no hit rate: it was written without a log" in gate.output


def test_inline_ignores_and_unused_ones(folder: Path) -> None:
    (folder / "prompt.j2").write_text("{# kvtool: ignore[KV101] shown to people only #}\n" + TEMPLATE)
    assert codes("prompt.j2") == []
    (folder / "prompt.j2").write_text("{# kvtool: ignore[KV103] #}\n" + TEMPLATE)
    assert codes("prompt.j2") == ["KV001", "KV101"]


def test_values_are_masked_unless_asked_for() -> None:
    masked = document(LOG, "--select", "KV101")["findings"][0]["examples"]
    plain = document(LOG, "--select", "KV101", "--show-values")["findings"][0]["examples"]
    assert masked != plain
    assert all(not set(text) & set("123456789") for text in masked)


def test_machine_formats(folder: Path) -> None:
    assert json.loads(lint(LOG, "--output-format", "sarif").stdout)["version"] == "2.1.0"
    assert len(json.loads(lint(LOG, "--output-format", "gitlab").stdout)) == 2
    assert len(lint(LOG, "--output-format", "json-lines").stdout.splitlines()) == 2
    assert lint(LOG, "--output-format", "github").stdout.count("::error") >= 1
    assert ElementTree.fromstring(lint(LOG, "--output-format", "junit").stdout)[0].get("failures") == "2"
    assert lint(LOG, "--output-format", "concise", "--output-file", "out.txt").stdout == ""
    assert (folder / "out.txt").read_text().count("KV") == 2


def test_a_price_makes_lost_tokens_dollars() -> None:
    log = str(SAMPLES / "airline-chat.jsonl")
    for command in ("lint", "analyze"):
        arguments = [command, log, "--tokenizer", "bytes", "--price", "3,0.3", "--output-format", "json"]
        found = json.loads(CliRunner().invoke(main, arguments).stdout)["findings"]
        assert found
        for one in found:
            assert one["lost_usd"] == pytest.approx(one["lost_tokens"] * 2.7e-6, abs=1e-6)
    shown = lint(log, "--price", "3,0.3").stdout
    assert f"{found[0]['lost_tokens']:,} lost tokens, ${found[0]['lost_usd']:.4g}; hit rate" in " ".join(
        shown.split()
    )
    assert "lost_usd" not in json.dumps(document(log)["findings"])


def test_gpu_seconds_are_the_prefill_flops_of_the_lost_tokens(folder: Path) -> None:
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps({**shape, "vocab_size": 256, "hidden_act": "silu"}))
    head = [f"Clock {second:02}:{second:02}. {RULES}" for second in range(12)]
    rows = [
        {"messages": [{"role": "system", "content": text}, {"role": "user", "content": "Hi"}]}
        for text in head
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["log.jsonl", "--tokenizer", "bytes", "--model", "model", "--flops", "1e6"]
    found = document(*arguments)["findings"]
    assert [one["code"] for one in found] == ["KV101"]
    # 2 FLOPs a weight; 4 a layer, query width and token before it; each of 11 prompts loses its first tokens
    linear, attention = 2.0 * (2 * (4 * 64 * 64 + 3 * 64 * 128) + 64 * 256), 4.0 * 2 * 64
    each = found[0]["lost_tokens"] / 11
    cost = 11 * (linear * each + attention * each * (each - 1) / 2) / 1e6
    assert found[0]["lost_gpu_seconds"] == pytest.approx(cost, rel=0.02)
    assert "lost_gpu_seconds" not in json.dumps(document(LOG)["findings"])


def test_gains_in_the_order_of_the_list_add_up_to_the_repaired_log() -> None:
    log = str(SAMPLES / "airline-chat.jsonl")
    report = document(log)
    gains = [one["marginal_gain"] for one in report["findings"]]
    alone = [one["hit_rate_if_fixed"] - report["hit_rate"]["tokens"] for one in report["findings"]]
    assert gains[0] == pytest.approx(alone[0], abs=1e-6)
    assert gains[1] > alone[1]  # tools in one order are worth more once the clock is gone
    assert report["hit_rate"]["tokens"] + sum(gains) == pytest.approx(0.958, abs=0.01)


@pytest.mark.parametrize("price", ["3", "0.3,3", "3,-1", "x,y", "inf,0"])
def test_a_wrong_price_is_a_usage_error(price: str) -> None:
    result = lint("nothing.jsonl", "--price", price)
    assert result.exit_code == 2
    assert "is not a price" in result.output


def test_rules_are_listed_and_explained() -> None:
    assert lint("--list-rules").stdout.count("\n") >= 20
    assert "Why: " in lint("--explain", "clock-time").stdout


def test_diff_changes_nothing_and_fix_does_what_it_shows(folder: Path) -> None:
    log = folder / "log.jsonl"
    log.write_bytes(Path(LOG).read_bytes())
    before = log.read_bytes()
    shown = lint("log.jsonl", "--diff")
    assert shown.exit_code == 1
    assert shown.stdout.startswith("--- log.jsonl:1\n+++ log.jsonl:1 (fixed)\n")
    assert log.read_bytes() == before
    fixed = lint("log.jsonl", "--fix")
    assert (fixed.exit_code, fixed.stdout.splitlines()[0][:10]) == (0, "0 findings")
    assert log.read_bytes() != before
    assert (lint("log.jsonl", "--diff").exit_code, lint("log.jsonl", "--diff").stdout.strip()) == (0, "")
    assert sorted(path.name for path in folder.iterdir()) == ["kvtool.toml", "log.jsonl", "prompt.j2"]


def test_fix_keeps_to_the_selected_rules(folder: Path) -> None:
    (folder / "log.jsonl").write_bytes(Path(LOG).read_bytes())
    assert codes("log.jsonl", "--fix", "--select", "KV201") == []
    assert codes("log.jsonl") == ["KV101"]


def test_requests_that_the_template_refuses_are_skipped_rows(folder: Path) -> None:
    (folder / "strict.jinja").write_text(
        "{% for m in messages %}{% if loop.index0 and m.role == messages[loop.index0 - 1].role %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    heads = [f"Time: 2024-05-15 15:{turn:02}:{turn:02}. {RULES}" for turn in range(12)]
    ask = {"role": "user", "content": "hello"}
    rows = [
        [{"role": "system", "content": head}, *[ask] * (1 + (turn == 3))] for turn, head in enumerate(heads)
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    found = document("log.jsonl", "--chat-template", "strict.jinja")
    assert found["findings"] and found["findings"][0]["requests"] == 11
    assert any("1 row skipped" in note and "roles must alternate" in note for note in found["notes"])
    assert lint("log.jsonl", "--chat-template", "strict.jinja", "--fix").exit_code in (0, 1)
    (folder / "log.jsonl").write_text(json.dumps({"messages": rows[3]}) + "\n")
    nothing = lint("log.jsonl", "--chat-template", "strict.jinja")
    assert nothing.exit_code == 2 and "roles must alternate" in nothing.stderr


def test_a_log_of_incomplete_requests_is_not_judged_and_says_so(folder: Path) -> None:
    body = {"model": "m", "previous_response_id": "r1", "input": f"Time 10:00:00. {RULES}"}
    (folder / "log.jsonl").write_text((json.dumps(body) + "\n") * 3)
    found = document("log.jsonl")
    assert found["findings"] == []
    assert "findings do not judge 3 incomplete requests of 3" in found["notes"]
