"""kvtool simulate from the outside."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvtool.cli import main

SAMPLE = Path(__file__).parents[2] / "samples/mooncake-conversation.jsonl"
CHAT = Path(__file__).parents[2] / "samples/airline-chat.jsonl"


def kvtool(*arguments):
    return CliRunner().invoke(main, [*map(str, arguments)])


def simulate(*arguments):
    shown = kvtool("simulate", *arguments, "--output-format", "json")
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


def test_a_trace_and_its_analysis_give_the_same_document(tmp_path):
    assert kvtool("analyze", SAMPLE, "-o", tmp_path / "a.duckdb").exit_code == 0
    options = (
        "--capacity",
        "10%",
        "--policy",
        "lru",
        "--policy",
        "belady",
        "--replicas",
        "2",
        "--routing",
        "sticky",
    )
    document = simulate(SAMPLE, *options)
    assert document["schema"] == "kvtool.simulation/1"
    assert document == simulate(tmp_path / "a.duckdb", *options)
    lru, belady = document["rows"]
    assert (lru["replicas"], lru["routing"]) == (2, "sticky") and (belady["replicas"], belady["routing"]) == (
        1,
        None,
    )


def test_an_analysis_of_prompts_gives_the_same_document(tmp_path):
    options = ("--tokenizer", "bytes")
    assert kvtool("analyze", CHAT, *options, "-o", tmp_path / "a.duckdb").exit_code == 0
    settings = ("--capacity", "5%", "--capacity", "50%", "--policy", "lru")
    plain, saved = simulate(CHAT, *options, *settings), simulate(tmp_path / "a.duckdb", *settings)
    advice = saved.pop("advice")
    assert [piece for piece in plain.pop("advice") if piece["code"] != "prompts"] == advice[:-1]
    assert plain == saved
    # an analysis has findings with prices, to which the advice points
    document = json.loads(kvtool("analyze", CHAT, *options, "--output-format", "json").stdout)
    gains = {
        finding["code"]: finding["hit_rate_if_fixed"] - document["hit_rate"]["tokens"]
        for finding in document["findings"]
    }
    assert advice[-1]["code"] == "prompts" and advice[-1]["evidence"]["gain"] == round(max(gains.values()), 6)
    assert max(gains, key=lambda code: gains[code]) in advice[-1]["text"]


def test_bytes_of_a_model_and_tiers(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 9})
    )
    options = ("--capacity", "1GiB", "--policy", "lru", "--model", tmp_path, "--tiers", "device=5%,host=50%")
    document = simulate(SAMPLE, *options)
    assert document["memory"]["bytes_per_token"] == 512
    assert document["rows"][0]["capacity_blocks"] == 2**30 // (512 * 512)
    shown = kvtool("simulate", SAMPLE, *options)
    assert shown.exit_code == 0 and "host" in shown.stdout and "4,096" in shown.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("--capacity", "1GiB"),
        ("--capacity", "many"),
        ("--policy", "best"),
        ("--tiers", "5%"),
        ("--model", "/none"),
        ("--tiers", "device=1GiB"),
        ("--tier-latency", "device=soon", "--tiers", "device=9"),
        ("--tier-latency", "host=5ms", "--tiers", "device=9"),
        ("--cost-weight", "tau=0"),
        ("--cost-weight", "size=1"),
        ("--cost-weight", "tau=long"),
        ("--priority", "vip=0"),
        ("--admit", "0"),
        ("--train-fraction", "100%"),
        ("--reuse-model", "."),
        ("--reuse-model", __file__),
        ("--replicas", "2", "--tiers", "device=9"),
        ("--decode-rate", "9", "--tiers", "device=9"),
        ("--cache-outputs", "--tiers", "device=9"),
        ("--ttl", "9", "--prefetch", "--tiers", "device=9,host=9", "--train-fraction", "50%"),
        ("--admit", "2", "--prefetch", "--tiers", "device=9,host=9", "--train-fraction", "50%"),
    ],
)
def test_wrong_options_exit_2(arguments):
    shown = kvtool("simulate", SAMPLE, "--policy", "lru", "--capacity", "5%", *arguments)
    assert shown.exit_code == 2 and arguments[0] in shown.stderr


def test_an_analysis_stands_alone(tmp_path):
    kvtool("analyze", SAMPLE, "-o", tmp_path / "a.duckdb")
    shown = kvtool("simulate", tmp_path / "a.duckdb", SAMPLE)
    assert shown.exit_code == 2 and "stands alone" in shown.stderr


def test_works_where_torch_cannot_be_imported():
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['kvtool', 'simulate', sys.argv[1]];"
        "from kvtool.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(SAMPLE)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "belady" in done.stdout


def test_outputs_are_cached_for_the_next_turn_where_the_log_has_them():
    options = (SAMPLE, "--capacity", "100%", "--policy", "lru")
    plain = simulate(*options)["rows"][0]["tokens_full"]
    kept = simulate(*options, "--cache-outputs", "--prefill-rate", "1e9")["rows"][0]
    assert kept["tokens_full"] > plain and kept["bypassed_requests"] == 0


def test_a_prewarmed_start_from_an_analysis_or_from_shards(tmp_path, tiny_model, branching_log):
    """The log's own shared blocks: every prompt finds them, the first one too."""
    tokenizer = ("--tokenizer", tiny_model, "--block-size", 16)
    assert kvtool("analyze", branching_log, *tokenizer, "-o", tmp_path / "a.duckdb").exit_code == 0
    settings = (*tokenizer, "--capacity", "1000", "--policy", "lru", "--resident")
    earlier = simulate(branching_log, *settings, tmp_path / "a.duckdb")
    warmed = kvtool(
        *("prewarm", "--model", tiny_model, "--logs", branching_log, "--block-size", 16),
        *("--out", tmp_path / "shards", "--output-format", "json"),
    )
    assert warmed.exit_code == 0, warmed.output
    stored = simulate(branching_log, *settings, tmp_path / "shards")
    assert stored == earlier
    plan = json.loads(warmed.stdout)["plan"]
    assert stored["resident"] == {"blocks": plan["blocks"], "in_log": plan["blocks"]}
    (row,) = stored["rows"]
    assert row["tokens"] == plan["hit_rate"]["cache_alone"] < row["prewarmed"]["tokens"]
    assert row["prewarmed"]["tokens"] == plan["hit_rate"]["with_cache"]
    shown = kvtool("simulate", CHAT, "--tokenizer", "bytes", "--resident", tmp_path / "a.duckdb")
    assert shown.exit_code == 2 and "another tokenizer" in shown.output


def test_tiers_say_what_is_written_and_how_long_it_saves():
    options = (SAMPLE, "--capacity", "1%", "--policy", "lru", "--tiers", "device=1%,host=99%")
    plain = simulate(*options)["tiers"]
    assert all(row["written_blocks"] > 0 and "seconds_saved" not in row for row in plain)
    rates = ("--model", "embedded", "--prefill-rate", "1000")
    free = simulate(*options, *rates)["tiers"]
    slow = simulate(*options, *rates, "--tier-speed", "host=1MiB")["tiers"]
    assert free[0]["seconds_saved"] == slow[0]["seconds_saved"] >= 0
    assert free[1]["seconds_saved"] > 0 > slow[1]["seconds_saved"], (
        "a load slower than computing saves nothing"
    )
    shown = kvtool("simulate", *options, "--tier-speed", "host=fast")
    assert shown.exit_code == 2 and "not a size" in shown.output


@pytest.mark.parametrize("option", [("--where", "row < 9"), ("--block-size", "64"), ("--share-tenants",)])
def test_an_analysis_refuses_options_of_reading_logs(tmp_path, option):
    assert kvtool("analyze", CHAT, "--tokenizer", "bytes", "-o", tmp_path / "a.duckdb").exit_code == 0
    shown = kvtool("simulate", tmp_path / "a.duckdb", *option)
    assert shown.exit_code == 2
    assert f"{option[0]} is for reading logs" in shown.stderr
