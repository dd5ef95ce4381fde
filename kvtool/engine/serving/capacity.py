"""How many blocks each tier holds, and what the device keeps them in: sizes in bytes become slots."""

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtool.engine.compute.arena import Arena, block_bytes
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.quantized_arena import QuantizedArena
from kvtool.engine.serving.config import ServeConfig
from kvtool.engine.storage import codec as codecs
from kvtool.engine.storage.layout import BlockShape
from kvtool.engine.storage.quantized import Quantized
from kvtool.engine.storage.writeback import record_bytes
from kvtool.errors import KvtoolError

if TYPE_CHECKING:
    from kvtool.engine.storage.codec import BlockCodec

CPU_MEMORY = 2 << 30
"""Device blocks take this much on a CPU by default, or a quarter of the machine's memory if that is less."""

CUDA_SHARE = 0.8
"""Share of a GPU's free memory that device blocks take by default."""

CHAIN = 32
"""Quantized blocks for each raw one that is set aside for the first block of a prompt."""

SPARE = 8
"""Raw slots for blocks that are being loaded."""


@dataclass(frozen=True, slots=True)
class Tiers:
    """Capacities in blocks, and how many of the device's can be raw where the rest is quantized (0: all are).

    block_bytes: of one on the device; slot_bytes: most of one in host and disk.
    """

    device: int
    raw: int
    host: int
    disk: int
    block_bytes: int
    slot_bytes: int


def device_codec(config: ServeConfig, shape: BlockShape) -> Quantized | None:
    """What full blocks on the device are kept in, None if raw. KvtoolError where that cannot be."""
    name = config.device_codec
    if name == "raw":
        return None
    if config.tier_codec not in (None, name):
        raise KvtoolError(
            f"--tier-codec {config.tier_codec}: blocks of the device are {name} and move as they are",
            "leave --tier-codec out",
        )
    size = shape.block_size
    if size < 16 or size & (size - 1):
        raise KvtoolError(
            f"--device-codec {name}: blocks of {size} tokens are read raw only",
            "use a --block-size of 16, 32 or another power of two",
        )
    odd = [dim for group in shape.groups for dim in (group.key_dim, group.value_dim) if dim % 2]
    if odd:
        raise KvtoolError(f"--device-codec {name}: heads of {odd[0]} channels are read raw only")
    codec = codecs.load_codec({"codec": name})
    assert isinstance(codec, Quantized)
    return codec


def plan_tiers(
    config: ServeConfig, model: Model, shape: BlockShape, below: "BlockCodec", kept: int = 0
) -> Tiers:
    """Capacities; `below`: codec of host and disk. KvtoolError when a size is less than one.

    kept: bytes that an earlier server's blocks take of the disk, which are this one's to use.
    """
    raw = block_bytes(model, shape.block_size)
    slot = max(codecs.block_bytes(below, shape, first) for first in (False, True))
    memory = config.device_memory or (0 if config.device_blocks else _default_memory(model))
    codec = device_codec(config, shape)
    block, lent = raw, 0
    device = config.device_blocks or memory // raw
    if codec is not None:
        block = codecs.block_bytes(codec, shape, False)
        busy = max(config.chunk_tokens, shape.block_size) // shape.block_size + 3 * config.max_running + SPARE
        if not config.device_blocks:
            # Either all blocks can be raw, or those in use and some first ones.
            device = max(memory // (block + raw), int((memory - busy * raw) / (block + raw / CHAIN)))
        lent = min(busy + device // CHAIN, device)
    if device < 2:
        raise KvtoolError(
            f"--device-memory: a block of {model.name} takes {block:,} bytes and two must fit",
            "raise --device-memory or --device-blocks",
        )
    used = device * block + lent * raw
    host = (used // 2 if config.host_memory is None else config.host_memory) // slot
    disk = 0
    if config.disk is not None:
        record = record_bytes(shape.block_size, slot)
        try:
            config.disk.mkdir(parents=True, exist_ok=True)
            room = shutil.disk_usage(config.disk).free + kept
        except OSError as error:
            raise KvtoolError(f"--disk {config.disk}: {error.strerror}", "name another folder") from error
        disk = min(config.disk_memory, room) // record
        if disk < 1:
            raise KvtoolError(
                f"--disk {config.disk}: no room for a block of {record:,} bytes",
                "make room there, or raise --disk-memory",
            )
    return Tiers(device, lent, host, disk, block, slot)


def make_arena(config: ServeConfig, model: Model, shape: BlockShape, tiers: Tiers) -> Arena:
    """The device's memory."""
    codec = device_codec(config, shape)
    if codec is None:
        return Arena(model, tiers.device, shape.block_size)
    return QuantizedArena(model, tiers.device, shape.block_size, codec, tiers.raw)


def _default_memory(model: Model) -> int:
    if model.device.type == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info(model.device)
        return int(free * CUDA_SHARE)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(CPU_MEMORY, total // 4)
