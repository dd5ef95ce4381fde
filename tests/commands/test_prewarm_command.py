"""kvtool prewarm as users call it: JSON, terminal, dry run, analysis as input, refusals with exit code 2."""

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner, Result

from kvtool.cli import main
from kvtool.engine.storage.codec import block_bytes, load_codec
from kvtool.engine.storage.footprint import FOLDER, beside_block, beside_blocks
from kvtool.engine.storage.layout import BlockShape
from kvtool.engine.storage.shards import open_shards
from kvtool.engine.storage.verify import verify
from kvtool.options import Size


def kvtool(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


def document(*arguments: object) -> dict:
    result = kvtool(*arguments, "--output-format", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


SHAPE = BlockShape.of_layers(16, "float32", [(2, 8, 8)] * 2)
"""Of the tiny model's blocks."""


@pytest.fixture
def common(tiny_model: Path, branching_log: Path) -> list[object]:
    return [
        "prewarm",
        "--model",
        tiny_model,
        "--logs",
        branching_log,
        "--block-size",
        16,
        "--prefill-rate",
        1,
    ]


def test_prewarm_writes_shards_and_says_what_they_hold(common, tmp_path) -> None:
    data = document(*common, "--out", tmp_path / "shards")
    assert data["schema"] == "kvtool.prewarm/1"
    assert data["model"]["name"] == "tiny-llama" and data["model"]["dtype"] == "float32"
    assert verify(tmp_path / "shards") == []
    shards = open_shards(tmp_path / "shards")
    assert data["blocks"] == data["new_blocks"] == data["plan"]["blocks"] == len(shards.rows)
    assert data["tokens_computed"] == data["plan"]["tokens"]
    assert data["plan"]["tokens"] + data["plan"]["split_tokens"] == len(shards.rows) * 16
    assert data["plan"]["tokens_unshared"] == sum(row.expected_hits for row in shards.rows) * 16
    assert data["tokens_computed"] < 0.5 * data["plan"]["tokens_unshared"]
    assert data["bytes"] == sum(row.bytes for row in shards.rows)
    assert data["bits_per_element"] == 32 and data["kl"] == 0 and not data["up_to_date"]
    assert data["tokens_per_second"] > 0
    again = document(*common, "--out", tmp_path / "shards")
    assert again["up_to_date"] and again["new_blocks"] == 0 and again["tokens_computed"] == 0


def test_the_terminal_says_it_in_a_few_lines(common, tmp_path) -> None:
    result = kvtool(*common, "--out", tmp_path / "shards", "--codec", "int8")
    assert result.exit_code == 0, result.output
    words = " ".join(result.stdout.split())
    assert " new blocks, " in words and "without sharing" in words
    assert "not measured" in words and "predicted hit rate" in words
    again = kvtool(*common, "--out", tmp_path / "shards", "--codec", "int8").stdout
    assert "up to date" in " ".join(again.split())


def test_dry_run_computes_nothing_and_agrees_with_the_run(common, tmp_path) -> None:
    planned = document(*common, "--dry-run")
    assert planned["dry_run"] and planned["out"] is None and "blocks" not in planned
    run = document(*common, "--out", tmp_path / "shards")
    assert planned["plan"] == run["plan"]
    best = planned["plan"]["prefixes"][0]
    assert best["start"] == 0 and best["requests"] == 10
    assert best["saved_tokens"] == 10 * (best["end"] - best["start"])
    rates = planned["plan"]["hit_rate"]
    assert 0.5 < rates["cache_alone"] < rates["with_cache"] and rates["tokens"] <= rates["with_cache"]
    terminal = kvtool(*common, "--dry-run")
    assert "What would be stored" in terminal.stdout and terminal.exit_code == 0


def test_documents_fit_their_schemas_where_there_is_nothing_to_count(common, tmp_path, valid_json) -> None:
    out = ["--out", tmp_path / "s"]
    for rest in (["--dry-run"], ["--dry-run", "--budget", 0], ["--dry-run", *out], out, out):
        valid_json(document(*common, *rest))
    valid_json(document("shards", "gc", tmp_path / "s", "--keep", 0))
    valid_json(document("shards", "ls", tmp_path / "s"))


def room_for(blocks: int, shape: BlockShape) -> int:
    """A budget of so many raw blocks and no more."""
    raw = load_codec({"codec": "raw"})
    bare = blocks * (block_bytes(raw, shape, False) + beside_block(raw, shape, False))
    return bare + beside_blocks(bare, [""]) + 100


def test_budget_and_min_requests_shrink_the_plan(common) -> None:
    whole = document(*common, "--dry-run")["plan"]
    cut = document(*common, "--dry-run", "--budget", room_for(5, SHAPE))["plan"]
    assert cut["blocks"] == 5 and cut["left_out"]["over_budget"] == whole["blocks"] - 5
    popular = document(*common, "--dry-run", "--min-requests", 10)["plan"]
    assert {row["requests"] for row in popular["prefixes"]} == {10}
    empty = kvtool(*common, "--out", "never-written", "--min-requests", 99)
    assert empty.exit_code == 2 and "the plan is empty" in empty.stderr and not Path("never-written").exists()


def test_ctrl_c_says_how_to_go_on(common, tmp_path, monkeypatch) -> None:
    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("kvtool.engine.walk.Walk.blocks", pressed)
        stopped = kvtool(*common, "--out", tmp_path / "s")
    assert stopped.exit_code == 130 and "the same command goes on" in stopped.stderr
    assert list((tmp_path / "s").iterdir()) == []
    assert kvtool(*common, "--out", tmp_path / "s").exit_code == 0


def test_budgets_by_tier_and_the_arithmetic_are_told(common, tmp_path) -> None:
    given = ["--prefill-rate", 1000, "--tier-speed", "host=1GB,disk=100MB"]
    whole = document(*common, "--dry-run", *given)
    block = whole["plan"]["bytes"] // whole["plan"]["blocks"]
    assert whole["plan"]["tiers"][2] == {
        "tier": "disk",
        "blocks": whole["plan"]["blocks"],
        "hit_rate": whole["plan"]["hit_rate"]["tokens"],
    }
    host, disk = whole["load_or_compute"]["tiers"]
    assert host["load_seconds_per_token"] == host["bytes_per_token"] / 1e9 and host["pays"]
    assert disk["bytes_per_token"] == block / 16 and disk["bytes_per_second"] == 1e8
    assert 0.0005 < disk["compute_seconds_per_token"] < 0.002
    assert whole["plan"]["hit_rate"]["expected"] is None  # ten requests are too few to fit
    file = tmp_path / "plan.duckdb"
    budget = f"host={3 * block},disk={room_for(5, SHAPE)}"
    cut = document(*common, "--dry-run", *given, "--budget", budget, "-o", file)
    assert [row["blocks"] for row in cut["plan"]["tiers"]] == [0, 3, 2]
    with duckdb.connect(str(file)) as connection:
        found = connection.execute("SELECT tier, count(*) FROM prewarm_plan GROUP BY tier ORDER BY tier")
        assert found.fetchall() == [("disk", 2), ("host", 3)]
    terminal = kvtool(*common, "--dry-run", *given, "--budget", budget).stdout
    assert "Load or compute, per token" in terminal and "Where it is kept" in terminal
    assert "of prefill saved" in " ".join(terminal.split())


def test_shards_that_would_slow_serving_down_are_not_made(common, tmp_path) -> None:
    slow = ["--prefill-rate", 1_000_000, "--tier-speed", "host=1GB,disk=1MB"]
    result = kvtool(*common, "--out", tmp_path / "s", *slow)
    assert result.exit_code == 2 and "--codec raw: a token takes" in result.stderr
    assert "would slow a server down" in result.stderr and not (tmp_path / "s").exists()
    dry = kvtool(*common, "--dry-run", *slow)
    assert dry.exit_code == 0 and "slower: not used" in dry.stdout


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--budget", "tape=3GB", "is not device=SIZE or host=SIZE or disk=SIZE"),
        ("--budget", "host=3GB,host=1GB", "twice"),
        ("--tier-speed", "3GB", "is not host=SIZE or disk=SIZE"),
        ("--tier-speed", "disk=0", "is not a size of at least 1"),
        ("--prefill-rate", "inf", "is not a number above 0"),
        ("--prefill-rate", "nan", "is not a number above 0"),
        ("--max-kl", "nan", "is not a number above 0"),
        ("--block-size", 1 << 70, "is not in the range"),
        ("--tenant-budget", "acme=lots", "is not a size"),
        ("--tenant-budget", "nobody=1GB", "the log has no tenant 'nobody'"),
    ],
)
def test_sizes_by_name_are_checked(common, option, value, message) -> None:
    result = kvtool(*common, "--dry-run", option, value)
    assert result.exit_code == 2 and message in " ".join(result.stderr.split())


def test_an_analysis_gives_the_same_shards_as_its_log(common, tiny_model, branching_log, tmp_path) -> None:
    file = tmp_path / "analysis.duckdb"
    made = kvtool("analyze", branching_log, "--tokenizer", tiny_model, "--block-size", 16, "-o", file)
    assert made.exit_code == 0, made.output
    document(*common, "--out", tmp_path / "from-log")
    data = document("prewarm", "--model", tiny_model, "--from", file, "--out", tmp_path / "from-analysis")
    assert data["block_size"] == 16
    for path in (tmp_path / "from-log").iterdir():
        assert (tmp_path / "from-analysis" / path.name).read_bytes() == path.read_bytes()


def test_an_analysis_of_another_tokenizer_or_template_is_refused_by_name(
    tiny_model, branching_log, tmp_path
) -> None:
    template = tmp_path / "plain.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}\n{% endfor %}")
    for field, options in (
        ("tokenizer", ["--tokenizer", "bytes"]),
        ("chat_template", ["--tokenizer", tiny_model, "--chat-template", template]),
    ):
        file = tmp_path / f"{field}.duckdb"
        made = kvtool("analyze", branching_log, "--block-size", 16, "-o", file, *options)
        assert made.exit_code == 0, made.output
        result = kvtool("prewarm", "--model", tiny_model, "--from", file, "--dry-run")
        assert result.exit_code == 2 and f" {field}: " in result.stderr
    file = tmp_path / "sizes.duckdb"
    assert (
        kvtool("analyze", branching_log, "--tokenizer", tiny_model, "--block-size", 16, "-o", file).exit_code
        == 0
    )
    result = kvtool("prewarm", "--model", tiny_model, "--from", file, "--dry-run", "--block-size", 24)
    assert result.exit_code == 2 and "block_size: 16 does not divide" in result.stderr
    coarse = document("prewarm", "--model", tiny_model, "--from", file, "--dry-run", "--block-size", 32)
    assert coarse["block_size"] == 32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a log or an analysis"),
        (["--logs", "a", "--from", "b", "--out", "c"], "name a log or an analysis"),
        (["--logs", "a"], "name the folder for the shards with --out"),
    ],
)
def test_what_is_missing_is_said_at_once(arguments, message) -> None:
    result = kvtool("prewarm", *arguments)
    assert result.exit_code == 2 and message in result.stderr


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 1 << 20),
        ("2GiB", 2 << 30),
        ("1.5 MB", 1_500_000),
        ("3kib", 3072),
        ("10B", 10),
        ("1e6", 10**6),
    ],
)
def test_sizes(text, size) -> None:
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "GiB", "2 parsecs", "1e", "-", "-1GiB", "nan", "inf", "8XB", "8iB"])
def test_what_is_no_size(text) -> None:
    result = kvtool("prewarm", "--budget", text)
    assert result.exit_code == 2 and "is not a size" in result.stderr
    assert "(units are B, KB, MB, GB, TB, KiB, MiB, GiB, TiB)" in result.stderr


@pytest.fixture
def steady(common: list[object]) -> list[object]:
    """A machine on which every codec is worth loading, however busy this one is."""
    return [*common, "--prefill-rate", 100, "--tier-speed", "host=10GB,disk=10GB"]


def test_auto_measures_protects_what_is_named_and_is_held_to_its_gate(steady, tmp_path) -> None:
    auto = [*steady, "--codec", "auto", "--max-kl", 5, "--protect", "system,tools"]
    data = document(*auto, "--out", tmp_path / "a")
    gate = data["gate"]
    assert gate["holds"] and gate["max_kl"] == 5 and gate["continuations"] >= 1 and data["kl"] == gate["kl"]
    assert data["tokens_measured"] > 0 and verify(tmp_path / "a") == []
    stored = open_shards(tmp_path / "a")
    counted = Counter(row.codec for row in stored.rows)
    assert {row["name"]: row["blocks"] for row in data["codecs"]} == counted
    assert sum(row["bytes"] for row in data["codecs"]) == data["bytes"]
    system = "You answer questions about trains, planes and ships. " * 8
    assert counted["half"] == -(-(len(system) + len("|system\n")) // 16)  # a token a byte
    free = document(*steady, "--codec", "auto", "--out", tmp_path / "b", "--max-kl", 5)
    assert "half" not in {row["name"] for row in free["codecs"]} and free["bytes"] < data["bytes"] / 1.4
    told = kvtool(*auto, "--out", tmp_path / "c").stdout
    assert "none of which calls a tool" in " ".join(told.split()) and "Stored as" in told
    assert document(*steady, "--codec", "auto", "--out", tmp_path / "a")["up_to_date"]


def test_a_codec_that_nothing_measures_leaves_system_and_tools_in_16_bits(steady, tmp_path) -> None:
    system = "You answer questions about trains, planes and ships. " * 8
    blocks = -(-(len(system) + len("|system\n")) // 16)
    run = kvtool(*steady, "--codec", "int8", "--out", tmp_path / "a", "--output-format", "json")
    counted = Counter(row.codec for row in open_shards(tmp_path / "a").rows)
    assert counted["half"] == blocks and counted["int8"] > 0
    said = (
        f"{blocks} of {blocks + counted['int8']} blocks are protected and stay in 16 bits: "
        "--protect system,tools"
    )
    assert said in json.loads(run.stdout)["notes"] and f"note: {said}\n" in run.stderr
    assert said in document(*steady, "--codec", "int8", "--dry-run")["notes"]
    free = kvtool(*steady, "--codec", "int8", "--protect", "none", "--out", tmp_path / "b")
    assert "protected" not in free.output
    assert {row.codec for row in open_shards(tmp_path / "b").rows} == {"int8"}
    for exact in ("raw", "half"):
        assert document(*steady, "--codec", exact, "--out", tmp_path / exact)["notes"] == []
        assert {row.codec for row in open_shards(tmp_path / exact).rows} == {exact}


def test_a_gate_that_does_not_hold_stores_nothing_and_exits_1(steady, tmp_path) -> None:
    out = tmp_path / "s"
    result = kvtool(*steady, "--codec", "int4", "--out", out, "--max-kl", 1e-9, "--output-format", "json")
    assert result.exit_code == 1 and not out.exists()
    gate = json.loads(result.stdout)["gate"]
    assert not gate["holds"] and gate["kl"] > gate["max_kl"] == 1e-9
    assert kvtool(*steady, "--codec", "k3v2", "--out", out).exit_code == 1, "k3v2 has a gate of its own"
    page = tmp_path / "page.html"
    told = kvtool(*steady, "--codec", "int4", "--out", out, "--max-kl", 1e-9, "--report", page)
    assert told.exit_code == 1 and "nothing stored: the gate does not hold" in " ".join(told.stdout.split())
    shown = page.read_text()
    assert "Nothing stored: the gate does not hold" in shown and "Run it anew" in shown
    assert "Check every byte" not in shown and not out.exists()
    out.mkdir()
    assert kvtool(*steady, "--codec", "int4", "--out", out, "--max-kl", 1e-9).exit_code == 1
    assert list(out.iterdir()) == [], "a folder that was there stays"


def test_a_gate_judges_what_the_folder_holds_already(steady, tmp_path) -> None:
    """Nothing is missing: the blocks that lie there are measured all the same, and what they are is said."""
    few = [*steady, "--codec", "int4", "--protect", "none", "--out", tmp_path]
    assert document(*few)["gate"] is None
    failed = kvtool(*few, "--max-kl", 1e-9)
    assert failed.exit_code == 1 and "the gate does not hold" in " ".join(failed.stdout.split())
    held = document(*steady, "--codec", "raw", "--out", tmp_path, "--max-kl", 5)
    assert held["up_to_date"] and held["gate"]["holds"] and held["kl"] == held["gate"]["kl"] > 1e-9
    assert held["notes"] == [f"of the plan's blocks {held['blocks']} stay int4, as they were stored before"]


def test_prompts_longer_than_the_models_positions_are_measured_at_their_front(
    steady, tiny_model, tmp_path
) -> None:
    """Every planned chain ends with the model's last position: nothing of the log goes on behind it."""
    log = tmp_path / "long.jsonl"
    row = {"messages": [{"role": "user", "content": "all work and no play " * 100}]}
    log.write_text(f"{json.dumps(row)}\n" * 4)
    common = ["prewarm", "--model", tiny_model, "--logs", log, "--block-size", 16, "--prefill-rate", 100]
    data = document(*common, "--codec", "auto", "--max-kl", 5, "--out", tmp_path / "s")
    assert data["blocks"] == 1024 // 16 and data["gate"]["continuations"] == 2 and data["kl"] > 0
    short = tmp_path / "short"
    shutil.copytree(tiny_model, short)
    settings = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**settings, "max_position_embeddings": 32}))
    result = kvtool(*common, "--model", short, "--codec", "int8", "--max-kl", 5, "--out", tmp_path / "t")
    assert result.exit_code == 2 and "there is nothing to measure a codec by" in result.stderr


def test_ids_beyond_the_vocabulary_are_refused(steady, tiny_model, tmp_path) -> None:
    log = tmp_path / "ids.jsonl"
    log.write_text(json.dumps({"token_ids": [5] * 20 + [999] * 20}) + "\n")
    for rest in (["--dry-run"], ["--out", tmp_path / "s"]):
        result = kvtool("prewarm", "--model", tiny_model, "--logs", log, "--block-size", 16, *rest)
        assert result.exit_code == 2 and "token id 999, tiny-llama has 258 tokens" in result.stderr
    assert not (tmp_path / "s").exists()


def test_an_analysis_leads_to_its_log(steady, tiny_model, branching_log, tmp_path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(branching_log.read_bytes())
    analysis = tmp_path / "a.duckdb"
    kvtool("analyze", log, "--tokenizer", tiny_model, "--block-size", 16, "-o", analysis)
    rest = ["--model", tiny_model, "--codec", "auto", "--max-kl", 5, "--prefill-rate", 100]
    document("prewarm", "--from", analysis, *rest, "--out", tmp_path / "one")
    document(*steady, *rest, "--out", tmp_path / "two")
    for path in (tmp_path / "one").glob("shard-*"):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    log.unlink()
    lost = kvtool("prewarm", "--from", analysis, *rest, "--out", tmp_path / "three")
    assert lost.exit_code == 2 and f"source: {log} is not there" in lost.stderr
    plain = ["--model", tiny_model, "--codec", "int8", "--prefill-rate", 100, "--out", tmp_path / "three"]
    lost = kvtool("prewarm", "--from", analysis, *plain)
    assert lost.exit_code == 2 and "give --protect none and no --max-kl" in lost.stderr
    assert document("prewarm", "--from", analysis, *plain, "--protect", "none")["new_blocks"] > 0


def test_roles_that_nobody_has_are_named(steady, tmp_path) -> None:
    result = kvtool(*steady, "--codec", "auto", "--protect", "system,tool-schema", "--out", tmp_path / "s")
    assert result.exit_code == 2 and "unknown role 'tool-schema'" in result.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--codec", "auto", "--max-kl", 5],
        ["--codec", "int8"],
        ["--codec", "auto", "--protect", "system", "--max-kl", 5],
    ],
)
def test_a_budget_is_used_whatever_its_blocks_take(steady, tmp_path, options) -> None:
    budget = 40_000
    file = tmp_path / "plan.duckdb"
    data = document(*steady, *options, "--budget", budget, "--out", tmp_path / "a", "-o", file)
    most = max(row.bytes for row in open_shards(tmp_path / "a").rows)
    left = budget - sum(path.stat().st_size for path in (tmp_path / "a").iterdir())
    assert 0 <= left < most + FOLDER + 400 * data["blocks"] and data["plan"]["left_out"]["over_budget"] > 0
    assert data["bytes"] == data["plan"]["bytes"]
    assert data["blocks"] == data["plan"]["blocks"] and verify(tmp_path / "a") == []
    with duckdb.connect(str(file)) as connection:
        kept = connection.execute("SELECT hash, bytes FROM prewarm_plan ORDER BY row").fetchall()
    assert kept == [(row.hash, row.bytes) for row in open_shards(tmp_path / "a").rows]
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    (tmp_path / "a" / "shard-00000.safetensors").unlink()
    document(*steady, *options, "--budget", budget, "--out", tmp_path / "a")
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == files
    assert document(*steady, *options, "--budget", budget, "--out", tmp_path / "a")["up_to_date"]


def test_a_dry_run_says_what_only_a_run_can_measure(steady, valid_json) -> None:
    planned = document(*steady, "--codec", "auto", "--dry-run", "--budget", 20_000)
    assert planned["plan"]["bytes"] <= 20_000 and planned["plan"]["bits_per_element"] < 9
    (note,) = planned["notes"]
    assert "the least of --codec auto: a run measures, and --budget holds fewer blocks" in note
    (note,) = document(*steady, "--codec", "auto", "--dry-run")["notes"]
    assert note.endswith("the least of --codec auto: a run measures")
    named = document(*steady, "--codec", "int8", "--dry-run", "--budget", 20_000)
    (note,) = named["notes"]
    assert "stay in 16 bits" in note and named["plan"]["bytes"] <= 20_000


def test_what_follows_a_picture_is_left_out_and_said(steady, tmp_path, tiny_model, valid_json) -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}}
    text = {"type": "text", "text": "What is to be seen here? "}
    row = {"messages": [{"role": "user", "content": [text, picture, text]}]}
    log = tmp_path / "pictures.jsonl"
    log.write_text(f"{json.dumps(row)}\n" * 3)
    common = ["prewarm", "--model", tiny_model, "--logs", log, "--block-size", 8, *steady[7:]]
    data = document(*common, "--out", tmp_path / "s")
    valid_json(data)
    shared = len("|user\n") + len(text["text"])
    assert data["blocks"] == shared // 8
    left = data["plan"]["left_out"]
    assert left["not_text"] > 20 and left["under_used"] == left["over_budget"] == 0
    told = " ".join(kvtool(*common, "--dry-run").stdout.split())
    assert (
        f"{left['not_text']:,} blocks ({left['not_text'] * 8:,} tokens) left out: they hold or follow" in told
    )
    row["messages"][0]["content"] = [picture]
    log.write_text(f"{json.dumps(row)}\n" * 3)
    few = kvtool(*common[:5], "--block-size", 32, *steady[7:], "--out", tmp_path / "t")
    assert few.exit_code == 2 and "every block holds or follows a part that is not text" in few.stderr


def test_blocks_of_tenants_that_no_server_would_ask_for_are_noted(
    common: list[object], branching_log: Path, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in branching_log.read_text().splitlines()]

    def noted(tenants: Sequence[str | None], *options: object) -> list[str]:
        log = tmp_path / "tenants.jsonl"
        named = ({**row, "tenant": tenant} for tenant in tenants for row in rows)
        log.write_text("".join(json.dumps(row) + "\n" for row in named))
        arguments = [log if argument == branching_log else argument for argument in common]
        notes = document(*arguments, "--dry-run", *options)["notes"]
        return [note.split(" blocks of tenants")[0] for note in notes if "blocks of no tenant" in note]

    whole = document(*common, "--dry-run")["plan"]["blocks"]
    assert noted([None, "red"]) == [str(whole)]
    assert noted(["blue", "red"]) == noted([None]) == noted([None, "red"], "--share-tenants") == []
