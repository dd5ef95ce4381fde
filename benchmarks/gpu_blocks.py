"""First tokens and sessions over raw and quantized blocks, through the tiers that a server has."""

import gc
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from kvtool.blocks import BlockHash
from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.runner import Chunk, Runner
from kvtool.engine.serving.capacity import Tiers, make_arena, plan_tiers
from kvtool.engine.serving.config import ServeConfig
from kvtool.engine.storage.codec import block_bytes, load_codec
from kvtool.engine.storage.coded import Encoded, encode_from, place_blocks
from kvtool.engine.storage.host import EncodedHost, HostBlocks
from kvtool.engine.storage.layout import BlockShape
from kvtool.engine.storage.pinned import PinnedHost
from kvtool.engine.storage.store import READERS
from kvtool.engine.storage.writeback import Survivor, WriteBack

BLOCK = 32
BUDGET = 8192
"""Tokens of a prefill chunk."""

CODECS = ("raw", "int8", "int4")
"""What the device keeps full blocks in."""


def ids(model: Model, count: int, seed: int) -> np.ndarray:
    """Random token ids."""
    return np.random.default_rng(seed).integers(10, model.config.vocab - 10, count).astype(np.uint32)


def wait(device: torch.device) -> float:
    """The clock, once the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def prefill(runner: Runner, prompt: np.ndarray, slots: list[int], start: int) -> torch.Tensor:
    """Logits of the last token; positions before `start` are in the arena."""
    for at in range(start, len(prompt), BUDGET):
        piece = prompt[at : at + BUDGET]
        logits = runner.step([Chunk(piece, at, slots, at + len(piece) == len(prompt))])
    return logits


def shape_of(model: Model) -> BlockShape:
    """What a block holds."""
    return BlockShape.of_layers(BLOCK, model.dtype_name, model.config.layer_shapes)


def device_blocks(model: Model, codec: str, running: int, **size: int) -> tuple[Arena, Tiers]:
    """The arena that a server with these options has, and its plan."""
    config = ServeConfig(device_codec=codec, chunk_tokens=BUDGET, max_running=running, host_memory=0, **size)
    tiers = plan_tiers(config, model, shape_of(model), load_codec({"codec": codec}))
    return make_arena(config, model, shape_of(model), tiers), tiers


def first_tokens(model: Model, prefixes: tuple[int, ...], new: int = 64) -> list[dict[str, Any]]:
    """Seconds to the logits of a prompt with `new` tokens behind a prefix: cold, and with the prefix on the
    device, in host memory and on disk. A raw device has raw blocks in host memory and int4 ones on disk; the
    others have their own codec everywhere.
    """
    rows = []
    for prefix in prefixes:
        for codec in CODECS:
            blocks = (prefix + new) // BLOCK + 1
            arena, _ = device_blocks(model, codec, 1, device_blocks=blocks)
            rows.append(
                {"prefix": prefix, "device blocks": codec, **_medians(model, arena, codec, prefix, new)}
            )
            del arena
            clear()
    return rows


def _medians(model: Model, arena: Arena, codec: str, prefix: int, new: int) -> dict[str, float]:
    runner = Runner(model, arena)
    shape, made = shape_of(model), load_codec({"codec": codec})
    slots = list(range(arena.slots))
    kept = slots[: prefix // BLOCK]
    firsts = [slot == 0 for slot in kept]
    host: HostBlocks = (
        PinnedHost(arena, len(kept), shape, made) if codec == "raw" else EncodedHost(shape, made)
    )
    found: dict[str, list[float]] = {}

    def timed(place: str, prompt: np.ndarray, start: int, bring: Callable[[], None] = lambda: None) -> None:
        begun = wait(model.device)
        bring()
        prefill(runner, prompt, slots, start).argmax(-1).tolist()
        found.setdefault(place, []).append(time.perf_counter() - begun)

    with TemporaryDirectory() as folder:
        disk = Disk(Path(folder), shape, "int4" if codec == "raw" else codec, len(kept))
        for number in range(4):
            prompt = ids(model, prefix + new, number)
            timed("cold", prompt, 0)
            timed("device", prompt, prefix)
            host.keep(arena, kept, kept, firsts)
            disk.keep(arena, kept, firsts)
            timed("host", prompt, prefix, lambda: host.bring(arena, kept, kept))
            timed("disk", prompt, prefix, lambda: disk.bring(arena, kept))
        disk.close()
    return {place: statistics.median(times[1:]) for place, times in found.items()}


class Disk:
    """A write-back area, whose file the system is asked to forget before it is read."""

    def __init__(self, folder: Path, shape: BlockShape, codec: str, slots: int) -> None:
        self._shape = shape
        self._codec = load_codec({"codec": codec})
        self._most = max(block_bytes(self._codec, shape, first) for first in (True, False))
        self._area = WriteBack(folder, slots, shape.block_size, self._most, codec)
        self._path = folder / "blocks.kv"
        self._readers = ThreadPoolExecutor(READERS)
        self._firsts: list[bool] = []

    def keep(self, arena: Arena, slots: Sequence[int], firsts: list[bool]) -> None:
        """Write blocks out and have them forgotten."""
        self._firsts = firsts
        tokens = np.zeros(self._shape.block_size, np.uint32)
        for slot, data in zip(
            slots, encode_from(arena, self._codec, self._shape, slots, firsts), strict=True
        ):
            name = self._name(slot)
            self._area.write(slot, Survivor(slot, name, name, name, slot, tokens), data())
        handle = os.open(self._path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)

    def bring(self, arena: Arena, slots: Sequence[int]) -> None:
        """Read them by a server's number of threads, and place them."""
        found = list(self._readers.map(self._read, slots))
        place_blocks(arena, self._shape, slots, found)

    def close(self) -> None:
        """End the threads."""
        self._readers.shutdown()
        self._area.close()

    def _read(self, slot: int) -> Encoded:
        data = self._area.read(slot, self._name(slot), memoryview(bytearray(self._most)))
        assert data is not None
        return Encoded(self._codec, data, self._firsts[slot])

    @staticmethod
    def _name(slot: int) -> BlockHash:
        return BlockHash(slot.to_bytes(16, "little"))


def sessions_that_fit(model: Model, memory: int, shared: int, own: int, answer: int) -> list[dict[str, Any]]:
    """How many sessions' blocks a server plans into `memory` bytes, with a prefix in common and without."""
    rows = []
    per_session = -(-(own + answer) // BLOCK)
    for codec in CODECS:
        config = ServeConfig(device_codec=codec, chunk_tokens=BUDGET, device_memory=memory, host_memory=0)
        tiers = plan_tiers(config, model, shape_of(model), load_codec({"codec": codec}))
        rows.append(
            {
                "device blocks": codec,
                "blocks": tiers.device,
                "sessions sharing": (tiers.device - shared // BLOCK) // per_session,
                "sessions alone": tiers.device // (per_session + shared // BLOCK),
            }
        )
    return rows


def shared_case(
    model: Model, memory: int, sessions: int, shared: int, own: int, answer: int
) -> list[dict[str, Any]]:
    """Sessions with a common prefix, with sharing on and off, and with sharing over quantized blocks: memory,
    first tokens, decode rate. Without sharing there may be fewer, as many as fit into `memory` bytes.
    """
    rows = []
    trunk = ids(model, shared, 0)
    per_session = -(-(own + answer) // BLOCK)
    common = shared // BLOCK
    raw = 2 * shape_of(model).elements
    for codec, sharing in (("raw", True), ("raw", False), ("int8", True), ("int4", True)):
        fits = sessions if sharing else min(sessions, memory // (raw * (per_session + common)))
        need = fits * per_session + common * (1 if sharing else fits)
        arena, tiers = device_blocks(model, codec, fits, device_blocks=need)
        runner = Runner(model, arena)
        slots = iter(range(arena.slots))
        trunk_slots = [next(slots) for _ in range(common)] if sharing else []
        if sharing:
            prefill(runner, trunk, trunk_slots, 0)
        waits, tables = [], []
        for number in range(fits):
            mine = trunk_slots or [next(slots) for _ in range(common)]
            table = mine + [next(slots) for _ in range(per_session)]
            prompt = np.concatenate([trunk, ids(model, own, 1 + number)])
            begun = wait(model.device)
            prefill(runner, prompt, table, shared if sharing else 0).argmax(-1).tolist()
            waits.append(time.perf_counter() - begun)
            tables.append(table)
        steps = min(answer - 1, 64)
        begun = wait(model.device)
        for step in range(steps):
            chunks = [Chunk(ids(model, 1, step), shared + own + step, table, True) for table in tables]
            runner.step(chunks).argmax(-1).tolist()
        took = time.perf_counter() - begun
        rows.append(
            {
                "sharing": sharing,
                "device blocks": codec,
                "sessions": fits,
                "kv_bytes": tiers.device * tiers.block_bytes + tiers.raw * raw,
                "first_token": statistics.median(waits),
                "decode_tokens_per_s": fits * steps / took,
            }
        )
        del arena, runner
        clear()
    return rows


def clear() -> None:
    """Give memory back between parts."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
