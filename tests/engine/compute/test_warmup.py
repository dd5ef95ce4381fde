"""The warm-up leaves nothing to compile for small batches, and nothing else behind."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from kvtool.engine.compute.model import Model
from kvtool.engine.serving import engine as engines

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available() or torch.ops.mkldnn._is_mkldnn_acl_supported(),
    reason="without oneDNN for x86 nothing is packed",
)

FORWARDS = """
import sys
import numpy as np
from kvtool.engine.compute import warmup
from kvtool.engine.compute.cpu import team
from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.load import load_model
from kvtool.engine.compute.runner import Chunk, Runner

team.torch_team = lambda: None  # where our own kernels cannot run
model = load_model(sys.argv[1])
runner = Runner(model, Arena(model, 40, 8))
if sys.argv[2] == "warm":
    warmup.SECONDS = 600.0
    warmup.warm_up(model)
for rows in (1, 3, 17, 39, 100, 128):
    print("FORWARD", flush=True)
    runner.step([Chunk(np.arange(rows, dtype=np.uint32), 0, range(40), 1)])
"""


def compiled(model: Path, how: str) -> list[int]:
    """Kernels that oneDNN compiled in each of six forwards, as it says itself."""
    environment = {**os.environ, "ONEDNN_VERBOSE": "profile_create"}
    command = [sys.executable, "-c", FORWARDS, str(model), how]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return [part.count("create:cache_miss") for part in result.stdout.split("FORWARD")[1:]]


@needs_onednn
def test_after_it_small_batches_compile_nothing(tiny_model: Path) -> None:
    assert all(
        count >= 4 for count in compiled(tiny_model, "cold")[2:]
    )  # the load's own trials had the others
    assert compiled(tiny_model, "warm") == [0] * 6


def test_a_server_is_warm_before_it_answers_and_has_nothing_in_its_books(
    serving: Callable[..., AbstractContextManager[Any]], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warmed: list[str] = []
    warm_up = engines.warm_up

    def watched(model: Model) -> None:
        warm_up(model)
        warmed.append(threading.current_thread().name)

    monkeypatch.setattr(engines, "warm_up", watched)
    with serving(model=str(tiny_model), block_size=8, device_blocks=40) as running:
        assert warmed == ["kvtool-scheduler"]
        assert running.counts == {} and running.engine.scheduler.pool.device.available() == 40
