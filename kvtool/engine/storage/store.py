"""The tensors behind the tiers: copies blocks between device, host, write-back area and shards.

Whatever comes from disk is proven by its checksum first. A block that fails is reported and is a miss:
the request computes it, and never knows.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from kvtool.blocks import BlockHash, TokenIds
from kvtool.cache.index import BlockIndex
from kvtool.cache.tiers import Move, Tier
from kvtool.engine.compute.arena import Arena, Block, Blocks
from kvtool.engine.storage.shards import BadBlock, ShardSet
from kvtool.engine.storage.writeback import Survivor, WriteBack

log = logging.getLogger("kvtool.serve")

READ_AHEAD = 64
"""Blocks read from disk before they are written to the device in one copy a layer."""


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

    def load(self, loads: Sequence[Move]) -> int:
        """Copy blocks up into device slots, in order, until one is bad. Returns how many arrived."""
        arrived = 0
        for source, run in groupby(loads, key=lambda move: move.source):
            moves = list(run)
            if source is Tier.HOST:
                assert self._host is not None
                slots = [move.source_slot for move in moves]
                self._device.copy_from(self._host, slots, [move.target_slot for move in moves])
                arrived += len(moves)
                continue
            read = self._from_disk if source is Tier.DISK else self._from_shards
            for start in range(0, len(moves), READ_AHEAD):
                some = moves[start : start + READ_AHEAD]
                blocks = list(_until_bad(read, some))
                if blocks:
                    self._device.write_blocks(
                        [move.target_slot for move in some[: len(blocks)]], _stack(blocks)
                    )
                arrived += len(blocks)
                if len(blocks) < len(some):
                    return arrived
        return arrived

    def close(self) -> None:
        """Close files."""
        if self._disk is not None:
            self._disk.close()
        if self._shards is not None:
            self._shards.close()

    def _from_shards(self, move: Move) -> Block | None:
        assert self._shards is not None
        row = self._shards.rows[move.source_slot]
        try:
            return list(self._shards.read_block(row.hash))
        except BadBlock as error:
            log.warning("bad shard block, computing it instead: %s", error)
            self._rows.pop(row.hash, None)
            return None

    def _from_disk(self, move: Move) -> Block | None:
        assert self._disk is not None and self.index is not None
        block = self.index.hash_of(move.node)
        data = self._disk.read(move.source_slot, block)
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


def _until_bad(read: Callable[[Move], Block | None], moves: Sequence[Move]) -> Iterator[Block]:
    for move in moves:
        block = read(move)
        if block is None:
            return
        yield block


def _stack(blocks: Sequence[Block]) -> Blocks:
    """Blocks -> per layer keys and values with a leading axis."""

    def pile(layer: int, part: int) -> Tensor:
        return torch.stack([block[layer][part] for block in blocks])

    return [(pile(layer, 0), pile(layer, 1)) for layer in range(len(blocks[0]))]
