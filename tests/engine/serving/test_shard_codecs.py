"""Shards of every codec, mixed ones too, serve: their blocks are hits, and none is bad."""

import json
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from kvtool.cli import main


@pytest.mark.parametrize("codec", ["auto", "lossless"])
def test_a_server_starts_from_them(codec, tiny_model, branching_log, serving, tmp_path: Path) -> None:
    options = ["--model", tiny_model, "--logs", branching_log, "--block-size", 16, "--codec", codec]
    steady = [
        "--prefill-rate",
        100,
        "--tier-speed",
        "host=10GB,disk=10GB",
        "--max-kl",
        5,
        "--protect",
        "system",
    ]
    shards = tmp_path / "shards"
    made = CliRunner().invoke(main, ["prewarm", *map(str, [*options, *steady, "--out", shards])])
    assert made.exit_code == 0, made.output
    row = json.loads(branching_log.read_text().splitlines()[0])
    body = {"model": "tiny-llama", "messages": row["messages"], "max_tokens": 4, "temperature": 0}
    with serving(shards=shards, model=str(tiny_model), device_blocks=80) as running:
        answer = httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=60).json()
        usage = answer["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0.5 * usage["prompt_tokens"]
        assert "kvtool_bad_blocks_total 0" in httpx.get(f"{running.url}/metrics").text
