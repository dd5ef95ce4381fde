"""kvtool demo: the real thing at a small size, and its table on made-up measurements."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvtool.commands import demo
from kvtool.engine.replay import Sent
from kvtool.engine.side_by_side import Pair, server
from kvtool.errors import KvtoolError
from kvtool.logs.reader import open_log
from kvtool.renderers.terminal import render

SAMPLES = Path(__file__).parents[2] / "samples"


@pytest.fixture(scope="module")
def small_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample with one tool and a quarter of the policy: prompts of a few hundred tokens."""
    path = tmp_path_factory.mktemp("demo") / "small.jsonl"
    with (SAMPLES / "airline-chat.jsonl").open() as lines, path.open("w") as out:
        for row in map(json.loads, list(lines)[:24]):
            row["tools"] = sorted(row["tools"], key=lambda tool: len(json.dumps(tool)))[:2]
            row["messages"][0]["content"] = row["messages"][0]["content"][:1500]
            out.write(json.dumps(row) + "\n")
    return path


def test_the_whole_story(
    small_log: Path, tmp_path: Path, valid_json: Callable[[dict[str, Any]], None]
) -> None:
    command = [
        "demo",
        "--log",
        str(small_log),
        "--requests",
        "2",
        "--max-tokens",
        "3",
        "--min-requests",
        "20",
    ]
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "kvtool",
            *command,
            "--keep",
            str(tmp_path / "kept"),
            "--output-format",
            "json",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    valid_json(data)
    assert "KV101" in data["findings"]
    assert data["hit_rate"]["before"] < 0.4 < 0.8 < data["hit_rate"]["after"]
    assert data["answers"] == "identical"
    assert len(data["requests"]) == 2
    stored = data["prewarm"]["blocks"] * 32
    assert 0 < data["prewarm"]["tokens_computed"] <= stored < data["prewarm"]["tokens_unshared"]
    for request in data["requests"]:
        assert 0 < request["cached_tokens"] <= stored
        assert request["cached_tokens"] % 32 == 0
        assert request["cached_tokens"] > request["prompt_tokens"] / 2
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {
        "normalized.jsonl",
        "normalizer.json",
        "serve.log",
        "shards",
    }
    assert "[5/5]" in result.stderr


def answer(text: str, first: float, cached: int) -> Sent:
    return Sent("r", "x.jsonl:1", 4140, cached, 3, first, first + 1, text)


@pytest.mark.parametrize(("last", "verdict"), [("Hello!", "identical"), ("Hullo!", "differ")])
def test_the_table_says_what_was_measured(
    last: str, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [
        Pair(answer("Hi", 20.0, 0), answer("Hi", 0.5, 4096)),
        Pair(answer("Ho", 22.0, 0), answer("Ho", 0.25, 4096)),
        Pair(answer("Hello!", 24.0, 0), answer(last, 1.0, 4128)),
    ]
    warmed = {
        "blocks": 128,
        "bytes": 180 << 20,
        "tokens_computed": 4096,
        "plan": {"tokens_unshared": 315_392},
    }
    report = demo.summarize(Path("x.jsonl"), ["KV101"], {"before": 0.108, "after": 0.949}, warmed, pairs)
    assert report.data["answers"] == verdict
    assert report.data["ttft"] == {"cold_seconds": 22.0, "warm_seconds": 0.5, "ratio": 44.0}
    render(report)
    out = capsys.readouterr().out
    assert out.rstrip().endswith(f"answers: {verdict}")
    for cell in (
        "10.8%",
        "94.9%",
        "315,392",
        "77.0x",
        "180.0 MiB",
        "12,320 of 12,420",
        "22.0 s",
        "500 ms",
        "44.0x",
    ):
        assert cell in out


def test_prompts_are_the_first_of_their_sessions() -> None:
    chosen = demo.openings(SAMPLES / "airline-chat.jsonl", 3)
    assert [request.session for request in chosen] == ["airline-00", "airline-01", "airline-02"]
    assert all(len(request.messages or []) == 2 for request in chosen)
    everything = demo.openings(SAMPLES / "airline-chat.jsonl", 1000)
    assert len(everything) == len(
        {request.session for request in open_log([str(SAMPLES / "airline-chat.jsonl")])}
    )


def test_a_log_without_messages_is_refused() -> None:
    with pytest.raises(KvtoolError, match="no request with messages"):
        demo.openings(SAMPLES / "mooncake-conversation.jsonl", 3)


def test_the_sample_is_found_in_a_clone_and_a_missing_one_is_named() -> None:
    assert demo.bundled(demo.SAMPLE) == SAMPLES / "airline-chat.jsonl"
    with pytest.raises(KvtoolError, match=r"no-such\.jsonl is not installed"):
        demo.bundled("no-such.jsonl")


def test_kept_files_never_mix_with_older_ones(tmp_path: Path) -> None:
    with pytest.raises(KvtoolError, match="exists already"), demo.working_folder(tmp_path):
        pass
    with demo.working_folder(None) as folder:
        assert folder.is_dir()
    assert not folder.exists()


def test_a_server_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(KvtoolError, match=r"did not come up: .*no-such-shards"),
        server(["--shards", str(tmp_path / "no-such-shards")], tmp_path / "serve.log"),
    ):
        pass


def test_a_demo_that_is_ended_takes_its_server_along(tmp_path: Path) -> None:
    """The server here is a stand-in that answers /health and writes down its process id."""
    stand_in = tmp_path / "kvtool"
    stand_in.mkdir()
    (stand_in / "__init__.py").write_text("")
    (stand_in / "__main__.py").write_text(
        "import http.server, os, pathlib, sys\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200)\n"
        "        self.end_headers()\n"
        "pathlib.Path('server.pid').write_text(str(os.getpid()))\n"
        "port = int(sys.argv[sys.argv.index('--port') + 1])\n"
        "http.server.HTTPServer(('127.0.0.1', port), Handler).serve_forever()\n"
    )
    code = (
        "import time, pathlib\nfrom kvtool.engine.side_by_side import server\n"
        "with server([], pathlib.Path('serve.log')):\n    print('up', flush=True)\n    time.sleep(600)\n"
    )
    script = tmp_path / "sub" / "script.py"
    script.parent.mkdir()
    script.write_text(code)
    with subprocess.Popen(
        [sys.executable, str(script)], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        process.terminate()
        assert process.wait(60) == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "server.pid").read_text()), 0)
