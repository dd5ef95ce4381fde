"""The tensors behind the tiers: copies blocks between device, host, write-back area and shards.

Whatever comes from disk is proven by its checksum first. A block that fails is reported and is a miss:
the request computes it, and never knows.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby

import numpy as np
import torch

from kvtool.blocks import BlockHash, TokenIds
from kvtool.cache.index import BlockIndex
from kvtool.cache.tiers import Move, Tier
from kvtool.engine.compute.arena import Arena, Block, Blocks
from kvtool.engine.storage.shards import BadBlock, ShardSet
from kvtool.engine.storage.writeback import Survivor, WriteBack

log = logging.getLogger("kvtool.serve")

READERS = 4
"""Threads that read from disk: enough to keep a disk busy, and that one stalled read does not stop all."""

AT_ONCE = 64
"""Blocks stacked for one copy a layer: bounds the memory that it takes."""


class BlockStore:
    """Executes a TieredPool's moves. `host`, `disk`, `shards`: None where there is no such tier."""

    def __init__(
        self,
        device: Arena,
        host: Arena | None = None,
        disk: WriteBack | None = None,
        shards: ShardSet | None = None,
    ) -> None:
        self.index: BlockIndex | None = None
        self._device = device
        self._host = host
        self._disk = disk
        self._shards = shards
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="kvtool-reader")
        self._rows = {} if shards is None else {row.hash: number for number, row in enumerate(shards.rows)}

    def shard_row(self, block: BlockHash, tokens: TokenIds) -> int:
        """The shards' row of a block with these tokens, -1 if they lack it or it has proved bad."""
        row = self._rows.get(block, -1)
        if row >= 0:
            assert self._shards is not None
            if not np.array_equal(self._shards.rows[row].tokens, tokens):
                return -1
        return row

    def execute(self, moves: Sequence[Move]) -> list[Move]:
        """Copy blocks down, in order. Returns the moves whose target could not be written."""
        failed: list[Move] = []
        for (source, target), run in groupby(moves, key=lambda move: (move.source, move.target)):
            if target is Tier.HOST:
                assert self._host is not None and source is Tier.DEVICE
                last = {move.target_slot: move for move in run}  # a slot may be filled twice in a run
                self._host.copy_from(self._device, [move.source_slot for move in last.values()], list(last))
            else:
                assert target is Tier.DISK
                arena = self._device if source is Tier.DEVICE else self._host
                assert arena is not None
                failed.extend(move for move in run if not self._write_back(arena, move))
        return failed

    def read(self, loads: Sequence[Move]) -> "BlockReading":
        """Begin to read blocks for the device: those on disk in threads of their own."""
        waiting: list[Future[Block | None] | None] = []
        for move in loads:
            if move.source is Tier.HOST:
                waiting.append(None)
            elif move.source is Tier.DISK:
                assert self.index is not None
                name = self.index.hash_of(move.node)
                waiting.append(self._readers.submit(self._from_disk, move.source_slot, name))
            else:
                waiting.append(self._readers.submit(self._from_shards, move.source_slot))
        return BlockReading(self._device, self._host, list(loads), waiting)

    def close(self) -> None:
        """Wait for reads that are under way and close files."""
        self._readers.shutdown(cancel_futures=True)
        if self._disk is not None:
            self._disk.close()
        if self._shards is not None:
            self._shards.close()

    def _from_shards(self, number: int) -> Block | None:
        assert self._shards is not None
        row = self._shards.rows[number]
        try:
            return list(self._shards.read_block(row.hash))
        except BadBlock as error:
            log.warning("bad shard block, computing it instead: %s", error)
            self._rows.pop(row.hash, None)
            return None

    def _from_disk(self, slot: int, block: BlockHash) -> Block | None:
        assert self._disk is not None
        data = self._disk.read(slot, block)
        if data is None:
            log.warning("bad block in the write-back area, computing it instead: block %s", block.hex())
            return None
        return self._from_bytes(data)

    def _write_back(self, arena: Arena, move: Move) -> bool:
        assert self._disk is not None and self.index is not None
        data = b"".join(
            tensor.contiguous().cpu().view(-1).view(torch.uint8).numpy().tobytes()
            for pair in arena.read_block(move.source_slot)
            for tensor in pair
        )
        record = survivor_of(self.index, move.node, move.target_slot)
        try:
            self._disk.write(move.target_slot, record, data)
        except OSError as error:
            log.warning("write-back failed, the block is dropped: %s", error.strerror)
            return False
        return True

    def _from_bytes(self, data: bytes) -> Block:
        buffer = torch.frombuffer(bytearray(data), dtype=self._device.dtype)
        block: Block = []
        at = 0
        for key, value in zip(self._device.keys, self._device.values, strict=True):
            parts = []
            for tensor in (key, value):
                size = tensor[0].numel()
                parts.append(buffer[at : at + size].view(tensor.shape[1:]))
                at += size
            block.append((parts[0], parts[1]))
        return block


def survivor_of(index: BlockIndex, node: int, slot: int) -> Survivor:
    """The write-back record's header of a node."""
    parent, depth = index.parent_of(node)
    above = index.hash_of(parent) if parent >= 0 else index.root_of(node)
    return Survivor(slot, index.hash_of(node), above, depth, index.tokens_of(node))


class BlockReading:
    """Blocks on their way to the device. Bad ones are None. Used by the scheduler's thread only."""

    def __init__(
        self,
        device: Arena,
        host: Arena | None,
        loads: list[Move],
        waiting: "list[Future[Block | None] | None]",
    ) -> None:
        self._device = device
        self._host = host
        self._loads = loads
        self._waiting = waiting
        self._arrived = 0

    def arrived(self) -> tuple[int, bool]:
        """(leading blocks that are here, whether the next one proved bad)."""
        while self._arrived < len(self._waiting):
            future = self._waiting[self._arrived]
            if future is not None:
                if not future.done():
                    break
                if future.result() is None:
                    return self._arrived, True
            self._arrived += 1
        return self._arrived, False

    def place(self, count: int) -> None:
        """Write the first `count` blocks, all arrived, into their device slots, and cancel the rest."""
        for future in self._waiting[count:]:
            if future is not None:
                future.cancel()
        pairs = zip(self._loads[:count], self._waiting[:count], strict=True)
        for in_memory, run in groupby(pairs, key=lambda pair: pair[1] is None):
            some = list(run)
            targets = [move.target_slot for move, _ in some]
            if in_memory:
                assert self._host is not None
                self._device.copy_from(self._host, [move.source_slot for move, _ in some], targets)
                continue
            for start in range(0, len(some), AT_ONCE):
                blocks = [future.result() for _, future in some[start : start + AT_ONCE] if future]
                self._device.write_blocks(targets[start : start + AT_ONCE], _stack(blocks))


def _stack(blocks: Sequence[Block | None]) -> Blocks:
    """Blocks -> per layer keys and values with a leading axis."""

    whole = [block for block in blocks if block is not None]
    assert len(whole) == len(blocks)
    return [
        (torch.stack([keys for keys, _ in layer]), torch.stack([values for _, values in layer]))
        for layer in zip(*whole, strict=True)
    ]
