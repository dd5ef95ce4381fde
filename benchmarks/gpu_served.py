"""A scheduler over a random model, as a server has it but for HTTP and text: what gpu.py times end to end."""

import gc
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from kvtool.blocks import BlockHash, namespace
from kvtool.cache.index import BlockIndex
from kvtool.cache.policies import POLICIES
from kvtool.cache.tiers import TieredPool
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.runner import Runner
from kvtool.engine.compute.sampler import GREEDY
from kvtool.engine.serving.capacity import make_arena, plan_tiers
from kvtool.engine.serving.choosing import Rules
from kvtool.engine.serving.chunking import Limits
from kvtool.engine.serving.config import ServeConfig
from kvtool.engine.serving.generation import Generation
from kvtool.engine.serving.scheduler import Scheduler
from kvtool.engine.serving.steps import Queued
from kvtool.engine.serving.text import StopFilter
from kvtool.engine.storage.codec import block_bytes, load_codec
from kvtool.engine.storage.host import EncodedHost
from kvtool.engine.storage.layout import BlockShape
from kvtool.engine.storage.pinned import PinnedHost
from kvtool.engine.storage.store import BlockStore
from kvtool.engine.storage.writeback import WriteBack

RAW = "raw"


class Watch:
    """In a detokenizer's place: when each token became known."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def push(self, token: int) -> str:
        """No text: random tokens have none."""
        self.times.append(time.perf_counter())
        return ""

    def finish(self) -> str:
        """Nothing is left."""
        return ""


@dataclass
class Asked:
    """A request and when its tokens came."""

    request: Generation
    asked: float
    watch: Watch = field(repr=False)

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.watch.times[0] - self.asked


class Served:
    """device, host, disk: blocks. codec: of the device's full blocks and of the tiers below it."""

    def __init__(
        self,
        model: Model,
        block: int,
        device: int,
        *,
        chunk: int,
        running: int = 64,
        codec: str = RAW,
        below: str = RAW,
        host: int = 0,
        disk: tuple[Path, int] | None = None,
    ) -> None:
        shape = shape_of(model, block)
        low = load_codec({"codec": below})
        config = ServeConfig(
            device_codec=codec, chunk_tokens=chunk, max_running=running, device_blocks=device, host_memory=0
        )
        self.arena = make_arena(config, model, shape, plan_tiers(config, model, shape, low))
        tier: PinnedHost | EncodedHost | None = None
        if host:
            tier = PinnedHost(self.arena, host, shape, low) if below == RAW else EncodedHost(shape, low)
        self.area = None
        if disk is not None:
            slot = max(block_bytes(low, shape, first) for first in (False, True))
            self.area = WriteBack(disk[0], disk[1], block, slot, below)
        self.store = BlockStore(self.arena, shape, low, tier, self.area)
        pool = TieredPool(POLICIES.load("lru"), device, host, disk[1] if disk else 0, below != codec)
        self.index = self.store.index = BlockIndex(pool, block, 1 << 20)
        self.scheduler = Scheduler(
            Queued(Runner(model, self.arena, True)),
            pool,
            self.index,
            self.store,
            Limits(chunk, running),
            time.monotonic,
        )
        # What is measured is the way up, whether or not it pays here.
        self.scheduler.rates.worth_loading = len  # type: ignore[method-assign, assignment]
        self.scheduler.rates.patience = lambda blocks: 1e9  # type: ignore[method-assign]

    def ask(self, prompt: np.ndarray, tokens: int, root: BlockHash | None = None) -> Asked:
        """Submit a greedy request for exactly `tokens` tokens."""
        watch = Watch()
        request = Generation(
            prompt=prompt,
            root=root or namespace("gpu"),
            max_tokens=tokens,
            choose=Rules(GREEDY),
            emit=lambda _: None,
            ends=frozenset(),
            detokenizer=watch,  # type: ignore[arg-type]
            stop=StopFilter([]),
        )
        asked = Asked(request, time.perf_counter(), watch)
        self.scheduler.submit(request)
        return asked

    def run(self) -> None:
        """Until nothing is left."""
        while self.scheduler.step() or self.scheduler.reading:
            pass
        assert not self.scheduler.waiting and not self.scheduler.running

    def answer(self, prompt: np.ndarray, root: BlockHash | None = None) -> Asked:
        """One token for a prompt, alone."""
        asked = self.ask(prompt, 1, root)
        self.run()
        return asked

    def forget_pages(self) -> None:
        """Let the system forget what it holds of the disk tier, so that the disk is read."""
        assert self.area is not None
        os.fsync(self.area._file)
        os.posix_fadvise(self.area._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close files, free memory: what refers to itself is not freed by being forgotten."""
        self.store.close()
        del self.arena, self.store, self.index, self.scheduler
        gc.collect()
        torch.cuda.empty_cache()  # does nothing where there is no CUDA


def shape_of(model: Model, block: int) -> BlockShape:
    """What a block holds."""
    return BlockShape.of_layers(block, model.dtype_name, model.config.layer_shapes)


def planned_blocks(model: Model, block: int, codec: str, chunk: int, memory: int) -> int:
    """Device blocks that a server plans into `memory` bytes."""
    config = ServeConfig(device_codec=codec, chunk_tokens=chunk, device_memory=memory, host_memory=0)
    return plan_tiers(config, model, shape_of(model, block), load_codec({"codec": codec})).device


def together(answers: Sequence[Sequence[float]]) -> tuple[float, float]:
    """(median seconds a step, tokens a second by that) while all answers were being decoded.

    answers: when each token of each was known. The median leaves out the step in which a graph is captured.
    """
    begin, end = max(times[0] for times in answers), min(times[-1] for times in answers)
    inside = [at for at in answers[0] if begin <= at <= end]
    step = statistics.median(after - before for before, after in pairwise(inside))
    return step, len(answers) / step


def free_memory(device: torch.device) -> int:
    """Bytes that a GPU has left; 8 GiB for a CPU that stands in for one."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 8 << 30
