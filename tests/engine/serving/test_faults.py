"""Faults while it works: crowds, flips under load, kill -9, hostile paths and sizes. Answers stay right."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from kvtool.cli import main
from kvtool.engine.storage.manifest import shard_name

Serving = Callable[..., AbstractContextManager[Any]]
WEB = httpx.Client(timeout=180)  # three processes may share two cores with other tests
SIZE = 16
SYSTEM = "You answer questions about trains, planes and ships. " * 8  # as in branching_log


def body(prompt: str, model: str = "tiny-llama", **fields: Any) -> dict[str, Any]:
    return {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 4, "ignore_eos": True, **fields}


def said(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def test_five_hundred_requests_at_once_all_finish_or_are_refused(serving: Serving, tiny_model: Path) -> None:
    """Twenty prompts, a pool that holds three of them; none is lost, none is wrong, nothing is left over."""
    prompts = [f"{'the same beginning ' * 2}{'abcdefg'[n % 7] * 20} {n % 20}" for n in range(500)]
    with serving(model=str(tiny_model), block_size=8, device_blocks=160) as calm:
        right = {
            prompt: said(WEB.post(f"{calm.url}/v1/completions", json=body(prompt))) for prompt in set(prompts)
        }

    async def send_all(url: str) -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=120, limits=limits) as client:
            posts = [client.post(f"{url}/v1/completions", json=body(prompt)) for prompt in prompts]
            return list(await asyncio.gather(*posts))

    with serving(
        model=str(tiny_model),
        block_size=8,
        device_blocks=30,
        host_memory=8 * 2048,
        max_queue=60,
        max_running=4,
    ) as running:
        answers = asyncio.run(send_all(running.url))
        running.idle()  # checks the pool
        device = running.engine.scheduler.pool.device
        assert running.on_scheduler(lambda _: device.available()) == 30
        requests = running.counts["requests"]
    finished = [number for number, answer in enumerate(answers) if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(finished) + len(refused) == 500 and len(finished) == requests >= 64
    assert all(said(answers[number]) == right[prompts[number]] for number in finished)
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)


def test_bits_that_flip_under_load_cost_computing_and_no_answer(
    serving: Serving, tiny_model: Path, branching_log: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "shards"
    arguments = ["--logs", branching_log, "--model", tiny_model, "--block-size", SIZE, "--out", folder]
    assert CliRunner().invoke(main, ["prewarm", *map(str, arguments)]).exit_code == 0
    with serving(
        model=str(tiny_model), shards=folder, device_blocks=64, host_memory=0, max_running=2
    ) as running:
        running.engine.scheduler.rates.worth_loading = len  # this model computes faster than it reads

        def ask(question: str, **fields: Any) -> str:
            messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
            whole = {**body(""), "model": running.engine.model_id, "messages": messages, **fields}
            del whole["prompt"]
            answer = WEB.post(f"{running.url}/v1/chat/completions", json=whole)
            assert answer.status_code == 200, answer.text
            return str(answer.json()["choices"][0]["message"]["content"])

        right = {q: ask(q, cache_salt=q) for q in ("Where?", "When?", "Why?")}
        rows = [row for row in running.engine.shards.rows if row.depth in (2, 9, 17)]
        done = threading.Event()

        def client(number: int) -> int:
            asked = 0
            while not done.is_set() or not asked:
                question = list(right)[(number + asked) % 3]
                assert ask(question) == right[question]
                asked += 1
            return asked

        with ThreadPoolExecutor(4) as pool:
            clients = [pool.submit(client, number) for number in range(4)]
            for row in rows:
                WEB.post(f"{running.url}/kv/reset", json={})  # what nobody holds is read again
                path = folder / shard_name(row.shard)
                path.chmod(0o600)
                with path.open("r+b") as file:
                    file.seek(row.offset + row.bytes // 2)
                    byte = file.read(1)
                    file.seek(-1, 1)
                    file.write(bytes([byte[0] ^ 4]))
                for _ in range(5):
                    WEB.post(f"{running.url}/kv/reset", json={})
                    threading.Event().wait(0.05)
            done.set()
            assert sum(one.result() for one in clients) > 4
        for question in right:
            WEB.post(f"{running.url}/kv/reset", json={})
            assert ask(question) == right[question]
        running.idle()
        assert 1 <= running.counts["bad_blocks"] <= len(rows)


def test_a_shard_that_is_all_bad_is_two_lines_and_an_exact_count(
    serving: Serving, tiny_model: Path, branching_log: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "shards"
    arguments = ["--logs", branching_log, "--model", tiny_model, "--block-size", SIZE, "--out", folder]
    assert CliRunner().invoke(main, ["prewarm", *map(str, arguments)]).exit_code == 0
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Where?"}]
    with serving(model=str(tiny_model), shards=folder, device_blocks=64, host_memory=0) as running:
        running.engine.scheduler.rates.worth_loading = len
        for file in folder.glob("*.safetensors"):
            rows = [row for row in running.engine.shards.rows if shard_name(row.shard) == file.name]
            data = bytearray(file.read_bytes())
            for row in rows:
                data[row.offset + row.bytes // 2] ^= 4
            file.chmod(0o600)
            with file.open("r+b") as same:  # which the server has open
                same.write(data)
        asked = {**body(""), "model": running.engine.model_id, "messages": messages}
        del asked["prompt"]
        WEB.post(f"{running.url}/v1/chat/completions", json=asked).raise_for_status()
        running.idle()
        bad = running.counts["bad_blocks"]
    lines = [line for line in caplog.messages if line.startswith("bad shard block, computing it instead: ")]
    assert bad > 2 and len(lines) == 2
    assert f": {bad - 1} more times, the last: " in lines[1]


@contextmanager
def process(*options: object) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """`kvtool serve` in a process of its own: (address, process)."""
    command = [sys.executable, "-m", "kvtool", "serve", "--port", "0", *map(str, options)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert started.stdout is not None
        yield started.stdout.readline().split()[-1], started
    finally:
        if started.poll() is None:
            started.kill()
        started.wait(30)
        assert started.stdout is not None
        started.stdout.close()


def test_after_kill_9_the_blocks_on_disk_are_back_and_are_not_computed_again(
    tiny_model: Path, tmp_path: Path
) -> None:
    options = ("--model", tiny_model, "--block-size", SIZE, "--device-blocks", 40, "--host-memory", 0)
    options = (*options, "--disk", tmp_path / "disk", "--disk-memory", "2MiB")
    prompts = [f"{letter * 7} says " * 36 for letter in "abcd"]  # 27 blocks each: one at a time fits

    def ask(url: str, prompt: str) -> tuple[str, int]:
        answer = WEB.post(f"{url}/v1/completions", json=body(prompt, str(tiny_model)))
        return said(answer), int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    def on_disk(url: str) -> set[str]:
        blocks = WEB.get(f"{url}/kv/blocks", params={"tier": "disk"}).json()["blocks"]
        return {block["hash"] for block in blocks}

    with process(*options) as (url, server):
        right = {prompt: ask(url, prompt)[0] for prompt in prompts}
        before = on_disk(url)
        assert len(before) >= 3 * 20, "most have been demoted"
        server.send_signal(signal.SIGKILL)
        server.wait(30)
    with process(*options) as (url, _):
        assert before <= on_disk(url)
        for prompt in prompts[:3]:
            again, cached = ask(url, prompt)
            assert again == right[prompt] and cached >= 20 * SIZE
        counts = WEB.get(f"{url}/kv/stats").json()["counts"]
        tail = counts["prompt_tokens"] - sum(counts[f"hit_tokens_{tier}"] for tier in ("device", "disk"))
        assert counts["computed_tokens"] == tail + 3 * 3, (
            "what was not there, and three tokens of each answer"
        )
        assert counts["hit_tokens_disk"] >= 3 * 20 * SIZE and counts["bad_blocks"] == 0


@pytest.fixture(scope="module")
def running(serving: Serving, tiny_model: Path) -> Iterator[Any]:
    with serving(model=str(tiny_model), block_size=8, device_blocks=64, body_limit=1 << 20) as made:
        yield made


@pytest.mark.parametrize(
    "path",
    [
        "/../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/v1/models/../../../../etc/passwd",
        "/v1/models/..%2f..%2fetc%2fpasswd",
        "/v1/models/%00",
        "/kv/blocks?tier=../../etc",
        "/kv/blocks?tier=device&offset=-1",
        "/page.html",
        "//etc/passwd",
        "/static/../server.py",
    ],
)
def test_no_path_leads_to_a_file(running: Any, path: str) -> None:
    host, port = running.url.removeprefix("http://").split(":")

    async def raw() -> bytes:  # a client library would tidy the path first
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer

    answer = asyncio.run(raw())
    assert answer.split()[1] in (b"400", b"404"), answer[:200]
    assert b"root:" not in answer and b"import" not in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"prompt": "x" * 900_000}, 400),
        ({"prompt": "x" * 1_100_000}, 413),
        ({"prompt": "x" * 30_000_000}, 413),
        ({"prompt": [0] * 100_000}, 400),
        ({"prompt": [1 << 70]}, 400),
        ({"prompt": [-1]}, 400),
        ({"prompt": ["x"] * 100}, 400),
        ({"stop": ["x"] * 17}, 400),
        ({"stop": "x" * 1001}, 400),
        ({"n": 10**9}, 400),
        ({"max_tokens": 10**12}, 200),
        ({"seed": 10**30}, 400),
        ({"logit_bias": {str(token): 1 for token in range(100_000)}}, 400),
        ({"cache_salt": "x" * 300}, 400),
        ({"user": "x" * 100_000}, 200),
        ({"metadata": {"deep": "[" * 10_000}}, 200),
        ({"session_ttl": 1e9}, 400),
    ],
)
def test_what_is_too_large_is_refused_and_the_server_goes_on(
    running: Any, fields: dict[str, Any], status: int
) -> None:
    answer = WEB.post(f"{running.url}/v1/completions", json=body(**{"prompt": "hi", "stop": "q", **fields}))
    assert answer.status_code == status, answer.text[:300]
    assert WEB.get(f"{running.url}/health").json() == {"status": "ok"}


def test_json_nested_deep_is_refused_and_the_server_goes_on(running: Any) -> None:
    deep = b'{"model": "tiny-llama", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    headers = {"content-type": "application/json"}
    answer = WEB.post(f"{running.url}/v1/chat/completions", content=deep, headers=headers)
    assert answer.status_code == 400
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"a" * 10: "[" * 1000}}}]
    whole = {
        "model": "tiny-llama",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": tools,
        "max_tokens": 1,
    }
    assert WEB.post(f"{running.url}/v1/chat/completions", json=whole).status_code in (200, 400)
    assert WEB.get(f"{running.url}/health").json() == {"status": "ok"}
