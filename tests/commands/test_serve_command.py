"""kvtool serve as a process: says where it is, drains on SIGTERM, explains what is missing."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from click.testing import CliRunner

from kvtool.cli import main

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@contextmanager
def serve(*arguments: object) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """(url, process) of a server on a port that it picked itself."""
    command = [sys.executable, "-m", "kvtool", "serve", "--port", "0", *map(str, arguments)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert " at http://127.0.0.1:" in line, line + process.stderr.read()
        yield line.split(" at ")[1].strip(), process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stderr.close()


def test_the_embedded_model_answers_to_its_name_and_warm_is_cold(serving: Callable[..., Any]) -> None:
    with serving(device_blocks=64) as running:
        with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["embedded"]
            messages: Any = [
                {"role": "system", "content": "You answer in one short sentence. " * 12},
                {"role": "user", "content": "What is the capital of France?"},
            ]
            said = [
                client.chat.completions.create(
                    model="embedded", messages=messages, temperature=0, max_tokens=12
                )
                for _ in range(2)
            ]
        assert "Paris" in (said[0].choices[0].message.content or "")
        assert said[1].choices[0].message.content == said[0].choices[0].message.content
        cached = [one.usage.prompt_tokens_details.cached_tokens for one in said]
        assert cached[0] == 0 and cached[1] >= 64


def test_sigterm_finishes_what_runs_takes_nothing_new_and_exits_0(tiny_model: Path, tmp_path: Path) -> None:
    arguments = (
        "--model",
        tiny_model,
        "--block-size",
        8,
        "--device-blocks",
        120,
        "--disk",
        tmp_path / "disk",
    )
    body = {
        "model": str(tiny_model),
        "prompt": "go on",
        "max_tokens": 600,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    with serve(*arguments) as (url, process):
        pieces: list[str] = []
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
            for line in answer.iter_lines():
                if not line:
                    continue
                pieces.append(line)
                if len(pieces) == 3:
                    process.send_signal(signal.SIGTERM)
                    threading.Event().wait(0.2)
                    with pytest.raises(httpx.TransportError):
                        httpx.get(f"{url}/health")
        assert process.wait(30) == 0
        assert pieces[-1] == "data: [DONE]"
        last = json.loads(pieces[-2].removeprefix("data: "))
        assert last["choices"][0]["finish_reason"] == "length"
        assert "Traceback" not in (process.stderr.read() if process.stderr else "")
    assert list((tmp_path / "disk").glob("*/blocks.kv")), "what was computed is on disk"


def test_requests_that_outlast_the_drain_are_told_why_they_end(tiny_model: Path) -> None:
    body = {"model": str(tiny_model), "prompt": "on and on", "max_tokens": 1000, "ignore_eos": True}
    with serve("--model", tiny_model, "--block-size", 8, "--drain", 0) as (url, process):
        with ThreadPoolExecutor(1) as pool:
            whole = pool.submit(httpx.post, f"{url}/v1/completions", json=body, timeout=60)
            while httpx.get(f"{url}/kv/stats").json()["running"] < 1:
                threading.Event().wait(0.01)
            stream = httpx.stream("POST", f"{url}/v1/completions", json={**body, "stream": True}, timeout=60)
            with stream as answer:
                pieces = []
                for line in filter(None, answer.iter_lines()):
                    pieces.append(line)
                    if len(pieces) == 1:
                        process.send_signal(signal.SIGTERM)
            assert whole.result().status_code == 503
        assert process.wait(30) == 0
        for error in (whole.result().json(), json.loads(pieces[-1].removeprefix("data: "))):
            assert error["error"]["message"] == "The server is shutting down."
        assert "Traceback" not in (process.stderr.read() if process.stderr else "")


def test_uploads_that_stall_and_answers_that_nobody_reads_do_not_outlast_the_drain(tiny_model: Path) -> None:
    body = json.dumps({"model": str(tiny_model), "prompt": "x", "max_tokens": 4}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += b"content-length: %d\r\n\r\n" % len(body)
    # A server that waited for anybody here would still be there when the test gives up.
    with (
        serve("--model", tiny_model, "--block-size", 8, "--drain", 1) as (url, process),
        socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=60) as uploads,
        socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=60) as begins,
    ):
        uploads.sendall(head + body[:-1])
        begins.sendall(head[:20])
        httpx.get(f"{url}/health")  # both are with the server
        process.send_signal(signal.SIGTERM)
        said = b"".join(iter(lambda: uploads.recv(4096), b""))
        assert said.startswith(b"HTTP/1.1 503 ") and b"The server is shutting down." in said
        assert begins.recv(4096) == b"", "nothing was asked yet"
        assert process.wait(20) == 0
        assert process.stderr is not None and "Traceback" not in process.stderr.read()


def test_who_follows_the_events_does_not_hold_up_the_end(tiny_model: Path) -> None:
    with (
        serve("--model", tiny_model, "--drain", 600) as (url, process),
        httpx.stream("GET", f"{url}/kv/events", timeout=60) as events,
    ):
        lines = events.iter_lines()
        assert json.loads(next(lines))["events"] == []
        process.send_signal(signal.SIGTERM)
        assert list(lines) == [], "the stream ends as it should"
        assert process.wait(30) == 0
        assert "Traceback" not in (process.stderr.read() if process.stderr else "")


def test_a_killed_server_leaves_its_blocks_to_the_next_one(
    serving: Callable[..., Any], tiny_model: Path, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    body = {
        "model": str(tiny_model),
        "prompt": "the hot prefix of all requests " * 5,
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
    }
    arguments = ("--model", tiny_model, "--block-size", 8, "--device-blocks", 60, "--disk", disk)
    with serve(*arguments) as (url, process), httpx.Client(base_url=url, timeout=60) as client:
        first = client.post("/v1/completions", json=body).json()
        for _ in range(1000):  # until what was computed is on disk
            tiers = client.get("/kv/stats").json()["tiers"]
            if tiers["disk"]["used"] >= tiers["device"]["used"] > 0:
                break
            threading.Event().wait(0.02)
        process.kill()
        process.wait()
    with serving(model=str(tiny_model), block_size=8, device_blocks=60, disk=disk) as running:
        again = httpx.post(f"{running.url}/v1/completions", json=body, timeout=60).json()
    assert again["choices"] == first["choices"]
    usage = again["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == (usage["prompt_tokens"] - 1) // 8 * 8


def run(*arguments: object, code: str = "") -> "subprocess.CompletedProcess[str]":
    program = f"{code}\nimport sys; from kvtool.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120, check=False)


@pytest.mark.parametrize("missing", ["torch", "fastapi", "prometheus_client"])
def test_without_the_extra_one_line_says_how_to_get_it(missing: str) -> None:
    result = run("serve", code=f"import sys; sys.modules['{missing}'] = None")
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "pip install 'kvtool[engine]'" in result.stderr and missing in result.stderr


def test_help_does_not_load_the_engine() -> None:
    code = "import sys\nfor name in ('torch', 'fastapi', 'numba', 'httpx'): sys.modules[name] = None"
    for command in ("serve", "replay"):
        result = run(command, "--help", code=code)
        assert result.returncode == 0 and f"Example: kvtool {command}" in result.stdout


def refused(*arguments: object) -> str:
    """What stderr says when the command exits with 2, in this process."""
    result = CliRunner().invoke(main, ["serve", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 2, result.output
    return result.stderr


@pytest.mark.parametrize(
    ("arguments", "needle"),
    [
        (["--model", "/nowhere"], "--model /nowhere"),
        (["--host", "999.1.1.1"], "cannot listen on 999.1.1.1"),
        (["--device-memory", "1KiB"], "--device-memory"),
        (["--normalizer", __file__], "not JSON"),
    ],
)
def test_what_cannot_work_is_one_line(arguments: list[str], needle: str, tiny_model: Path) -> None:
    given = arguments if "--model" in arguments else ["--model", str(tiny_model), *arguments]
    assert needle in refused("--port", 0, *given)


def test_a_taken_port_is_said(tiny_model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = refused("--model", tiny_model, "--port", taken.getsockname()[1])
    assert "cannot listen on 127.0.0.1" in said


def test_a_key_file_that_is_none_is_refused_with_its_line(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("good\na b c\n")
    assert f"{keys}, line 2" in refused("--api-key-file", keys)
    keys.write_text("good\nschlüssel a\n", encoding="utf-8")
    assert f"{keys}, line 2: a key that is not ASCII" in refused("--api-key-file", keys)
