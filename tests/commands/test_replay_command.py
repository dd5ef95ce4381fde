"""kvtool replay against our own server: what is measured is what the simulated pool predicts."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from kvtool.cli import main
from kvtool.commands.replay import percentiles
from kvtool.engine.replay import delays
from kvtool.engine.serving import engine
from kvtool.requests import Request, Source


def replay(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["replay", *map(str, arguments)], catch_exceptions=False)


def document(*arguments: object) -> dict[str, Any]:
    result = replay(*arguments, "--output-format", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("device_blocks", [400, 48])
def test_measured_is_predicted_with_room_and_without(
    serving: Callable[..., Any],
    tiny_model: Path,
    branching_log: Path,
    device_blocks: int,
    valid_json: Callable[[dict[str, Any]], None],
) -> None:
    with serving(model=str(tiny_model), block_size=16, device_blocks=device_blocks, host_memory=0) as running:
        options = ("--url", running.url, "--tokenizer", tiny_model, "--fast", "--in-flight", 1)
        found = document(branching_log, *options, "--max-tokens", 20)
        running.idle()
        valid_json(found)
        counts = running.counts
        assert found["schema"] == "kvtool.replay/1" and found["model"] == running.engine.model_id
        assert len(found["requests"]) == 10 and found["failed"] == [] and found["notes"] == []
        assert found["tokens"]["prompt"] == counts["prompt_tokens"]
        assert found["tokens"]["cached"] == counts["hit_tokens_device"] > 0
        assert found["hit_rate"]["measured"] == pytest.approx(
            counts["hit_tokens_device"] / counts["prompt_tokens"]
        )
        assert found["hit_rate"]["predicted"] == pytest.approx(found["hit_rate"]["measured"], abs=0.005)
        assert (running.engine.scheduler.pool.lost > 0) is (device_blocks == 48)
        times = [request["ttft_seconds"] for request in found["requests"]]
        assert found["ttft_seconds"]["max"] == max(times) and found["ttft_seconds"]["p50"] == sorted(times)[4]

        again = document(branching_log, *options, "--limit", 3)
        assert len(again["requests"]) == 3
        assert "the cache was not empty" in again["notes"][0]
        if device_blocks == 400:
            assert again["hit_rate"]["predicted"] == again["hit_rate"]["measured"] > 0.9
        cleared = document(branching_log, *options, "--limit", 1, "--reset")
        assert cleared["hit_rate"] == {"measured": 0.0, "predicted": 0.0}


@pytest.fixture
def crowded(tmp_path: Path) -> Path:
    """200 chats of 24 sessions that come and go, some in bursts: more blocks than the server below holds."""
    rows = []
    turns: dict[int, int] = {}
    for number in range(200):
        session = (number * number // 7 + number % 3) % 24
        turns[session] = turns.get(session, 0) + 1
        said = [
            {"role": role, "content": f"{role} {turn} of {session}: {'abcdefgh'[session % 8] * 12}"}
            for turn in range(min(turns[session], 5))
            for role in ("user", "assistant")
        ]
        system = f"You are agent number {session % 4}. " * 5
        rows.append(
            {
                "messages": [{"role": "system", "content": system}, *said[:-1]],
                "timestamp": 1700000000 + number,
                "session_id": f"s{session}",
            }
        )
    path = tmp_path / "crowded.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("policy", ["lru", "cost", "fitted"])
def test_the_prediction_holds_under_every_policy_of_the_server(
    serving: Callable[..., Any], tiny_model: Path, crowded: Path, tmp_path: Path, policy: str
) -> None:
    """Less than half a point apart on a recorded stream with evictions; `fitted` with what it has learned."""
    shards = None
    if policy == "fitted":
        shards = tmp_path / "shards"
        common = ("--logs", crowded, "--model", tiny_model, "--block-size", 16, "--min-requests", 100)
        common += ("--prefill-rate", 1)  # whatever this machine does, blocks are worth storing
        made = CliRunner().invoke(main, ["prewarm", *map(str, common), "--out", str(shards)])
        assert made.exit_code == 0, made.output
    options = {"model": str(tiny_model), "block_size": 16, "device_blocks": 60, "host_memory": 0}
    with serving(**options, policy=policy, shards=shards) as running:
        running.engine.scheduler.rates.worth_loading = len  # this model computes faster than it reads
        assert running.engine.scheduler.pool.device.policy.ages is (policy == "fitted")
        found = document(
            crowded,
            "--url",
            running.url,
            "--tokenizer",
            tiny_model,
            "--fast",
            "--in-flight",
            1,
            "--max-tokens",
            2,
        )
        running.idle()
        assert running.engine.scheduler.pool.lost > 100 and running.counts.get("bad_blocks", 0) == 0
    rates = found["hit_rate"]
    assert rates["predicted"] == pytest.approx(rates["measured"], abs=0.005)
    assert 0.2 < rates["measured"] < 0.9


@pytest.mark.parametrize("policy", ["lru", "cost", "fitted"])
def test_what_simulate_predicts_for_a_recorded_stream_is_what_the_server_found(
    serving: Callable[..., Any],
    tiny_model: Path,
    crowded: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
) -> None:
    """The log is what the server was asked, at the times at which it was. One of the server's blocks is the
    incomplete one at the end of the request that runs, which a log of whole blocks does not know."""
    shards = tmp_path / "shards"
    common = ("--logs", crowded, "--model", tiny_model, "--block-size", 16, "--min-requests", 100)
    common += ("--prefill-rate", 1)  # whatever this machine does, blocks are worth storing
    made = CliRunner().invoke(main, ["prewarm", *map(str, common), "--out", str(shards)])
    assert made.exit_code == 0, made.output
    ranks = engine.load_policy
    # The server ranks by the shards' model and has none of their blocks.
    monkeypatch.setattr(
        engine, "load_policy", lambda config, size: ranks(replace(config, shards=shards), size)
    )
    rows = [json.loads(line) for line in crowded.read_text().splitlines()]
    options = {"model": str(tiny_model), "block_size": 16, "device_blocks": 60, "host_memory": 0}
    with serving(**options, policy=policy) as running:
        assert running.engine.scheduler.pool.device.policy.ages is (policy == "fitted")
        for row in rows:
            row["timestamp"] = time.time()
            body = {"model": "tiny-llama", "messages": row["messages"], "max_tokens": 1, "ignore_eos": True}
            headers = {"x-session-id": row["session_id"]}
            answer = httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
            assert answer.status_code == 200
        running.idle()
        counts = running.counts
        assert running.engine.scheduler.pool.lost > 100
    recorded = tmp_path / "recorded.jsonl"
    recorded.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["simulate", recorded, "--tokenizer", tiny_model, "--block-size", 16, "--capacity", 59]
    command += ["--policy", policy, "--reuse-model", shards, "--output-format", "json"]
    result = CliRunner().invoke(main, [*map(str, command)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["rows"]
    measured = counts["hit_tokens_device"] / counts["prompt_tokens"]
    # `fitted` looks at ages, and the clocks read the time at places that are not quite the same.
    assert row["tokens"] == pytest.approx(measured, abs=0.005 if policy == "fitted" else 1e-6)
    assert 0.2 < measured < 0.9


def test_terminal_output_and_other_tokenizers(
    serving: Callable[..., Any], tiny_model: Path, branching_log: Path
) -> None:
    with serving(model=str(tiny_model), block_size=16, device_blocks=200) as running:
        result = replay(
            branching_log, "--url", f"{running.url}/v1", "--tokenizer", "bytes", "--fast", "--limit", 2
        )
        assert result.exit_code == 0
        assert "2 of 2 requests answered" in result.stdout and "first token" in result.stdout
        assert "no prediction: the server has another tokenizer" in result.stdout


@pytest.fixture
def stranger() -> Iterator[str]:
    """Another vendor's server: no /kv, no cached tokens, refuses every second request."""

    class Handler(BaseHTTPRequestHandler):
        seen = 0

        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            models = b'{"data": [{"id": "other"}]}'
            self.answer(*(200, models) if self.path == "/v1/models" else (404, b"no"))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            assert body["stream"] and body["model"] == "other"
            Handler.seen += 1
            if Handler.seen % 2 == 0:
                self.answer(503, b'{"error": {"message": "too busy"}}')
                return
            chunks = [
                {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
                {"choices": [{"delta": {"content": "hi"}}]},
                {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}},
            ]
            lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
            self.answer(200, lines.encode())

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_another_vendors_server_and_its_refusals(stranger: str, branching_log: Path) -> None:
    result = replay(
        branching_log, "--url", stranger, "--fast", "--in-flight", 1, "--limit", 4, "--output-format", "json"
    )
    assert result.exit_code == 1, "a refused request is a finding"
    found = json.loads(result.stdout)
    assert [request["error"] for request in found["requests"]] == [None, "503: too busy"] * 2
    assert found["failed"] == [{"reason": "503: too busy", "requests": 2, "first": f"{branching_log}:2"}]
    assert found["hit_rate"] == {"measured": 0.0, "predicted": None}
    assert found["requests"][0]["cached_tokens"] is None and found["tokens"]["prompt"] == 14
    assert "the server does not report cached tokens" in found["notes"]


def test_no_server_is_one_line_and_exit_2(branching_log: Path) -> None:
    result = replay(branching_log, "--url", "http://127.0.0.1:9")
    assert result.exit_code == 2
    assert "no OpenAI-compatible server answers" in result.stderr and "Traceback" not in result.stderr


def test_block_traces_cannot_be_sent(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        json.dumps({"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}) + "\n"
    )
    result = replay(trace)
    assert result.exit_code == 2 and "the prompt's text is not in the log" in result.stderr


def at(*seconds: float | None) -> list[Request]:
    return [
        Request(str(row), Source("log", row), arrival=None if when is None else int(when * 1e6), text="x")
        for row, when in enumerate(seconds)
    ]


def test_recorded_pauses_are_kept_and_scaled() -> None:
    assert delays(at(100, 101, 105), 1.0) == [0.0, 1.0, 5.0]
    assert delays(at(100, 101, 105), 10.0) == [0.0, 0.1, 0.5]
    assert delays(at(100, None, 105, None), 1.0) == [0.0, 0.0, 5.0, 5.0]
    assert delays(at(100, 105), None) == [0.0, 0.0]


def test_percentiles_are_values_that_were_measured() -> None:
    found = percentiles([float(number) for number in range(1, 101)])
    assert found == {"p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0, "mean": 50.5}
    assert percentiles([3.0]) == {"p50": 3.0, "p90": 3.0, "p99": 3.0, "max": 3.0, "mean": 3.0}
    assert percentiles([]) is None
