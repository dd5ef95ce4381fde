"""How fast this machine computes, copies and reads: measured in about a second, for `load_or_compute`."""

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from kvtool.analysis.load_or_compute import Speeds
from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.cost import prefill_of
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.runner import Chunk, Runner
from kvtool.engine.storage.codec import BlockCodec, decode_block, encode_block
from kvtool.engine.storage.identity import Identity
from kvtool.errors import KvtoolError

PREFILL_TOKENS = 256
"""Tokens of the forward that is timed."""

DISK_BYTES = 32 << 20
"""Size of the file that is read back."""

COPIED_BLOCKS = 16
ROUNDS = 3


def measure_speeds(
    model: Model,
    codec: BlockCodec,
    block_size: int,
    folder: Path,
    prefill_rate: float | None = None,
    tiers: Mapping[str, int] | None = None,
) -> Speeds:
    """What is given is taken (`prefill_rate` in tokens a second), the rest is measured.

    folder: the shards', which need not be there yet; a file is written to its disk and deleted.
    """
    given = tiers or {}
    blocks = max(PREFILL_TOKENS // block_size, 1)
    blocks = max(min(blocks, model.config.max_positions // block_size), 1)
    arena = Arena(model, blocks, block_size)
    tokens = min(blocks * block_size, model.config.max_positions)
    flops = float(prefill_of(model).cost(np.array([tokens]))[0])
    seconds = _prefill(model, arena, tokens) if prefill_rate is None else tokens / prefill_rate
    return Speeds(
        flops / seconds,
        {
            "host": float(given.get("host") or _host(model, arena)),
            "disk": float(given.get("disk") or _disk(folder)),
        },
        _decode(model, codec, block_size),
    )


def _prefill(model: Model, arena: Arena, tokens: int) -> float:
    """Seconds of one forward."""
    chunk = Chunk(np.ones(tokens, np.uint32), 0, range(arena.slots))
    runner = Runner(model, arena)
    return _best(lambda: float(runner.step([chunk]).sum()), model.device, rounds=2)


def _host(model: Model, arena: Arena) -> float:
    """Bytes a second from host memory into the device's arena."""
    host = Arena(model, COPIED_BLOCKS, arena.block_size, "cpu")
    for tensor in (*host.keys, *host.values):
        tensor.zero_()
    theirs = list(range(min(COPIED_BLOCKS, arena.slots)))
    seconds = _best(lambda: arena.copy_from(host, theirs, theirs), model.device)
    return len(theirs) * arena.block_bytes / seconds


def _disk(folder: Path) -> float:
    """Bytes a second from `folder`'s disk, or from temporary files' where nothing may be written to it; the
    system is asked to forget the file before it is read."""
    folder = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    if not os.access(folder, os.W_OK):  # a dry run may be started anywhere
        folder = Path(tempfile.gettempdir())
    try:
        with tempfile.TemporaryFile(dir=folder) as handle:
            handle.write(os.urandom(DISK_BYTES))
            handle.flush()
            os.fsync(handle.fileno())
            buffer = bytearray(DISK_BYTES)

            def read() -> None:
                os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                os.preadv(handle.fileno(), [buffer], 0)

            return DISK_BYTES / _best(read, torch.device("cpu"))
    except OSError as error:
        raise KvtoolError(
            f"{folder}: cannot measure the disk: {error.strerror}", "give --tier-speed"
        ) from error


def _decode(model: Model, codec: BlockCodec, block_size: int) -> float:
    """Seconds to restore one block of random numbers."""
    shape = Identity.of_model(model, block_size).shape
    source = torch.Generator().manual_seed(0)
    block = [
        (
            torch.randn(block_size, heads, keys, generator=source).to(model.dtype),
            torch.randn(block_size, heads, values, generator=source).to(model.dtype),
        )
        for heads, keys, values in model.config.layer_shapes
    ]
    data = bytearray(encode_block(codec, shape, block, first=False))
    return _best(lambda: decode_block(codec, shape, data, first=False), torch.device("cpu"))


def _best(work: Callable[[], object], device: torch.device, rounds: int = ROUNDS) -> float:
    """Fewest seconds of `rounds`, the device's own work included."""
    fewest = float("inf")
    for _ in range(rounds):
        started = perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        fewest = min(fewest, perf_counter() - started)
    return max(fewest, 1e-9)
