"""The tensors behind the tiers: copies blocks between device, host, write-back area and shards.

Whatever comes from disk is proven by its checksum first. A block that fails is reported and is a miss:
the request computes it, and never knows.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from kvtool.blocks import BlockHash, TokenIds
from kvtool.cache.index import BlockIndex
from kvtool.cache.tiers import Move, Tier
from kvtool.engine.compute.arena import Arena, Block
from kvtool.engine.compute.quantized_arena import QuantizedArena
from kvtool.engine.storage.codec import load_codec
from kvtool.engine.storage.coded import AT_ONCE, Encoded, encode_from, place_blocks
from kvtool.engine.storage.host import HostBlocks
from kvtool.engine.storage.layout import BlockShape
from kvtool.engine.storage.memory import Staging, fresh, page_locked, populate
from kvtool.engine.storage.shards import BadBlock, ShardSet
from kvtool.engine.storage.writeback import Survivor, WriteBack
from kvtool.errors import KvtoolError

if TYPE_CHECKING:
    from kvtool.engine.storage.codec import BlockCodec

log = logging.getLogger("kvtool.serve")

READERS = 4
"""Threads that read from disk: enough to keep a disk busy, and that one stalled read does not stop all."""

AHEAD = 2
"""Threads that read what nobody waits for yet; they are others, so that a guess delays no request."""

Take = Callable[[int], memoryview]
"""Gives memory of so many bytes to read into."""

Find = Callable[[], Encoded | None]
"""Reads a block; None for one that proved bad."""


class BlockStore:
    """Executes a TieredPool's moves. `host`, `disk`, `shards`: None where there is no such tier.

    codec: how the disk tier keeps blocks that come straight from the device.
    """

    def __init__(
        self,
        device: Arena,
        shape: BlockShape,
        codec: "BlockCodec",
        host: HostBlocks | None = None,
        disk: WriteBack | None = None,
        shards: ShardSet | None = None,
    ) -> None:
        self.index: BlockIndex | None = None
        self._device = device
        self._shape = shape
        self._codec = codec
        self._host = host
        self._disk = disk
        self._shards = shards
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="kvtool-reader")
        self._ahead = ThreadPoolExecutor(AHEAD, thread_name_prefix="kvtool-ahead")
        self._rows = {} if shards is None else {row.hash: number for number, row in enumerate(shards.rows)}
        names = {} if shards is None else shards.manifest.codecs
        self._codecs = {name: load_codec(config) for name, config in names.items()}
        self._staging = Staging()
        self._own = page_locked if device.device.type == "cuda" else fresh

    def shard_row(self, block: BlockHash, tokens: TokenIds) -> int:
        """The shards' row of a block with these tokens, -1 if they lack it or it has proved bad."""
        row = self._rows.get(block, -1)
        if row >= 0:
            assert self._shards is not None
            if not np.array_equal(self._shards.rows[row].tokens, tokens):
                return -1
        return row

    def chain_to(self, block: BlockHash) -> list[int]:
        """Nodes of the chain that ends with `block`, empty if neither index nor shards know it."""
        assert self.index is not None
        below = []
        while (node := self.index.find(block)) is None:
            row = None if self._shards is None else self._shards.index.get(block)
            if row is None:
                return []
            below.append(row)
            block = row.parent
            if row.depth == 0:
                break
        nodes = self.index.path(node)
        root = block if node is None else self.index.root_of(node)
        for row in reversed(below):
            child = self.index.child(nodes[-1] if nodes else -1, row.tokens, root)
            if child is None:
                break
            nodes.append(child)
        return nodes

    def execute(self, moves: Sequence[Move]) -> list[Move]:
        """Copy blocks down, in order. Returns the moves whose target could not be written."""
        failed: list[Move] = []
        for (source, target), run in groupby(moves, key=lambda move: (move.source, move.target)):
            if target is Tier.HOST:
                assert self._host is not None and source is Tier.DEVICE
                last = {move.target_slot: move for move in run}  # a slot may be filled twice in a run
                moved = list(last.values())
                self._host.keep(
                    self._device,
                    [move.source_slot for move in moved],
                    [move.target_slot for move in moved],
                    [self._is_first(move.node) for move in moved],
                )
            else:
                assert target is Tier.DISK
                failed.extend(move for move in run if not self._write_back(move))
        return failed

    def read(self, loads: Sequence[Move]) -> "BlockReading":
        """Begin to read blocks for the device: those on disk in threads of their own."""
        reading = BlockReading(self._device, self._host, self._shape, list(loads))
        take = self._staging.take if reading.in_place else self._own
        for place, move in enumerate(loads):
            find = self._finder(move, take)
            if find is not None:
                reading.waiting[place] = self._readers.submit(reading.take_in, place, find)
            elif self._host is not None and not self._host.holds(move.source_slot):
                bad: Future[Block | Encoded | None] = Future()
                bad.set_result(None)
                reading.waiting[place] = bad
        return reading

    def lift(self, moves: Sequence[Move]) -> "BlockLift":
        """Begin to read blocks for the host tier, behind everything that a request waits for."""
        assert self._host is not None
        finders = [self._finder(move, self._own) for move in moves]
        return BlockLift(
            self._host, list(moves), [self._ahead.submit(find) for find in finders if find is not None]
        )

    def counts(self) -> dict[str, int]:
        """For metrics."""
        squeezed = self._device.crowded_out if isinstance(self._device, QuantizedArena) else 0
        return {"squeezed_blocks": squeezed}

    def warm_up(self, slots: int) -> None:
        """Make the first `slots` of the device's memory real, which the first reads will fill."""
        if self._device.device.type == "cpu":
            tensors = [*self._device.keys, *self._device.values]
            self._ahead.submit(populate, [tensor[:slots] for tensor in tensors])

    def close(self) -> None:
        """Wait for reads that are under way and close files."""
        self._readers.shutdown(cancel_futures=True)
        self._ahead.shutdown(cancel_futures=True)
        if self._disk is not None:
            self._disk.close()
        if self._shards is not None:
            self._shards.close()

    def _finder(self, move: Move, take: Take) -> "Find | None":
        """What reads a block from disk or shards into memory from `take`; None for one that is in memory."""
        if move.source is Tier.HOST:
            return None
        if move.source is Tier.SHARDS:
            return lambda: self._from_shards(move.source_slot, take)
        assert self.index is not None
        name, first = self.index.hash_of(move.node), self._is_first(move.node)
        return lambda: self._from_disk(move.source_slot, name, first, take)

    def _from_shards(self, number: int, take: Take) -> Encoded | None:
        assert self._shards is not None
        row = self._shards.rows[number]
        data = take(row.bytes)
        try:
            self._shards.read_into(row, data)
        except BadBlock as error:
            log.warning("bad shard block, computing it instead: %s", error)
            self._rows.pop(row.hash, None)
            return None
        return Encoded(self._codecs[row.codec], data, row.depth == 0)

    def _from_disk(self, slot: int, block: BlockHash, first: bool, take: Take) -> Encoded | None:
        assert self._disk is not None
        data = self._disk.read(slot, block, take(self._disk.block_bytes))
        if data is None:
            log.warning("bad block in the write-back area, computing it instead: block %s", block.hex())
            return None
        return Encoded(self._codec, data, first)

    def _write_back(self, move: Move) -> bool:
        assert self._disk is not None and self.index is not None
        first = self._is_first(move.node)
        try:
            if move.source is Tier.DEVICE:
                (coded,) = encode_from(self._device, self._codec, self._shape, [move.source_slot], [first])
                data = coded()
            else:
                assert self._host is not None
                data = bytes(self._host.encoded(move.source_slot, first).data)
            self._disk.write(move.target_slot, survivor_of(self.index, move.node, move.target_slot), data)
        except (OSError, KvtoolError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            log.warning("write-back failed, the block is dropped: %s", reason)
            return False
        return True

    def _is_first(self, node: int) -> bool:
        assert self.index is not None
        return self.index.parent_of(node)[1] == 0


def survivor_of(index: BlockIndex, node: int, slot: int) -> Survivor:
    """The write-back record's header of a node."""
    parent, depth = index.parent_of(node)
    root = index.root_of(node)
    above = index.hash_of(parent) if parent >= 0 else root
    return Survivor(slot, index.hash_of(node), above, root, depth, index.tokens_of(node))


class BlockReading:
    """Blocks on their way to the device. Used by the scheduler's thread, but for `take_in`.

    What has arrived is placed while the rest is read: on a CPU by the readers, each block while it is in
    the processor's cache; on a GPU here, many at a time, as its copies must not meet those of a forward.
    """

    def __init__(self, device: Arena, host: HostBlocks | None, shape: BlockShape, loads: list[Move]) -> None:
        self.in_place = device.device.type == "cpu" and not isinstance(device, QuantizedArena)
        self.waiting: list[Future[Block | Encoded | None] | None] = [None] * len(loads)
        """By place what will be read: None for a block that proved bad, empty for one in its slot."""
        self._device = device
        self._host = host
        self._shape = shape
        self._loads = loads
        self._placed = 0
        self._over = False
        self._writing = Lock()

    def take_in(self, place: int, find: Find) -> Block | Encoded | None:
        """Read a block and, if the memory that it was read into is used again, write it to its slot.

        Not any more when the reading is over: the slot may be another request's by then.
        """
        found = find()
        if found is None or not self.in_place:
            return found
        block = found.decode(self._shape)
        with self._writing:
            if not self._over:
                self._device.write_block(self._loads[place].target_slot, block)
        return []

    def arrived(self) -> int:
        """Leading blocks that are here and whole."""
        return self._placed + _leading(self.waiting[self._placed :])

    def failed(self) -> list[int]:
        """Places of the blocks that proved bad."""
        return _bad(self.waiting)

    def done(self) -> bool:
        """Whether nothing more will come."""
        self._place(self.arrived())
        return all(future is None or future.done() for future in self.waiting)

    def place(self, count: int) -> None:
        """The end: the first `count` blocks, all arrived, are in their slots; none is written later."""
        for future in self.waiting[count:]:
            if future is not None:
                future.cancel()
        self._place(count)
        with self._writing:
            self._over = True

    def _place(self, count: int) -> None:
        first, self._placed = self._placed, max(count, self._placed)
        pairs = zip(self._loads[first:count], self.waiting[first:count], strict=True)
        for in_memory, run in groupby(pairs, key=lambda pair: pair[1] is None):
            some = list(run)
            targets = [move.target_slot for move, _ in some]
            if in_memory:
                assert self._host is not None
                self._host.bring(self._device, [move.source_slot for move, _ in some], targets)
                continue
            for start in range(0, len(some), AT_ONCE):
                found = [future.result() for _, future in some[start : start + AT_ONCE] if future]
                blocks = [block for block in found if isinstance(block, Encoded)]
                if blocks:
                    place_blocks(self._device, self._shape, targets[start : start + AT_ONCE], blocks)
        self.waiting[first:count] = [None] * (count - first)


class BlockLift:
    """Blocks on their way from disk to the host tier. Used by the scheduler's thread only."""

    def __init__(self, host: HostBlocks, moves: list[Move], waiting: "list[Future[Encoded | None]]") -> None:
        self._host = host
        self._moves = moves
        self._waiting = waiting

    def arrived(self) -> int:
        """Leading blocks that are here and whole."""
        return _leading(self._waiting)

    def failed(self) -> list[int]:
        """Places of the blocks that proved bad."""
        return _bad(self._waiting)

    def place(self, first: int, last: int) -> None:
        """Write blocks [first, last), all arrived, into their host slots."""
        for move, future in zip(self._moves[first:last], self._waiting[first:last], strict=True):
            block = future.result()
            assert block is not None
            self._host.put(move.target_slot, block)

    def cancel(self) -> None:
        """Read no more than what has begun."""
        for future in self._waiting:
            future.cancel()


def _leading(waiting: "Sequence[Future[Block | Encoded | None] | Future[Encoded | None] | None]") -> int:
    for place, future in enumerate(waiting):
        if future is not None and (not future.done() or future.cancelled() or future.result() is None):
            return place
    return len(waiting)


def _bad(waiting: "Sequence[Future[Block | Encoded | None] | Future[Encoded | None] | None]") -> list[int]:
    return [
        place
        for place, future in enumerate(waiting)
        if future is not None and future.done() and not future.cancelled() and future.result() is None
    ]
