"""Progress is for terminals: what a person sees there, and silence anywhere else."""

import os
import pty
import subprocess
import sys

import pytest

SCRIPT = """
import time
from kvtool.progress import counted, working
with working("pricing"):
    time.sleep(0.3)
with counted("rows", 40) as advance:
    for done in range(0, 41, 10):
        advance(done)
        time.sleep(0.15)
print("result")
"""


def test_a_terminal_sees_what_is_done_and_how_fast() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=theirs, env=environment, check=True
    )
    os.close(theirs)
    seen = os.read(ours, 1 << 20).decode()
    os.close(ours)
    assert done.stdout == b"result\n"
    for part in ("pricing", "rows", "40/40", "/s", "0:00:0"):
        assert part in seen, part


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_pipe_sees_nothing(stream: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert getattr(done, stream) == ("result\n" if stream == "stdout" else "")
