"""The tensors behind the tiers: copies blocks between device, host, write-back area and shards.

Whatever comes from disk is proven by its checksum first. A block that fails is reported and is a miss:
the request computes it, and never knows.

Where the page cache can hold what is stored, it is a tier: a block is read from disk once. Beside a GPU that
has more stored than the host's memory holds it only costs a copy, and disks are read past it.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from kvtool.blocks import BlockHash, TokenIds
from kvtool.cache.index import BlockIndex
from kvtool.cache.tiers import Move, Tier
from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.quantized_arena import QuantizedArena
from kvtool.engine.storage.codec import load_codec
from kvtool.engine.storage.coded import Encoded, encode_from
from kvtool.engine.storage.direct import Bytes, Came
from kvtool.engine.storage.host import HostBlocks
from kvtool.engine.storage.index import BlockRow
from kvtool.engine.storage.landing import StagedReading
from kvtool.engine.storage.lanes import Lanes, lanes_of
from kvtool.engine.storage.layout import BlockShape
from kvtool.engine.storage.memory import Staging, available, populate
from kvtool.engine.storage.reading import BlockLift, BlockReading, InPlaceReading
from kvtool.engine.storage.runs import Run, Wanted, alone, joined
from kvtool.engine.storage.seldom import Seldom
from kvtool.engine.storage.shards import BadBlock, ShardSet
from kvtool.engine.storage.staging import StagingArea
from kvtool.engine.storage.writeback import Survivor, WriteBack
from kvtool.engine.storage.writing import Writer, yielding
from kvtool.errors import KvtoolError

if TYPE_CHECKING:
    from kvtool.engine.storage.codec import BlockCodec

READERS = 4
"""Threads that read from disk: enough to keep a disk busy, and that one stalled read does not stop all."""

AHEAD = 2
"""Threads that read what nobody waits for yet; they are others, so that a guess delays no request."""

SHORTEST = 2 << 20
"""Bytes of a run below which more readers would not make it faster."""


class BlockStore:
    """Executes a TieredPool's moves. `host`, `disk`, `shards`: None where there is no such tier.

    codec: how the disk tier keeps blocks that come straight from the device. lanes: the device's, but for
    tests of their order.
    """

    def __init__(
        self,
        device: Arena,
        shape: BlockShape,
        codec: "BlockCodec",
        host: HostBlocks | None = None,
        disk: WriteBack | None = None,
        shards: ShardSet | None = None,
        lanes: Lanes | None = None,
    ) -> None:
        self.index: BlockIndex | None = None
        self._device = device
        self._shape = shape
        self._codec = codec
        self._host = host
        self._disk = disk
        self._shards = shards
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="kvtool-reader")
        self._ahead = ThreadPoolExecutor(AHEAD, "kvtool-ahead", yielding)
        self._writer = None if disk is None else Writer(disk)
        self._rows = {} if shards is None else {row.hash: number for number, row in enumerate(shards.rows)}
        names = {} if shards is None else shards.manifest.codecs
        self._codecs = {name: load_codec(config) for name, config in names.items()}
        self._lanes = lanes or lanes_of(device.device)
        self._buffers = Staging()
        self._bad_shard = Seldom("bad shard block, computing it instead")
        self._bad_copy = Seldom("bad block in the write-back area, computing it instead")
        self._lost = Seldom("write-back failed, a block is not kept on disk")
        self._area = None
        on_gpu = device.device.type == "cuda"
        sizes = [] if shards is None else [row.bytes for row in shards.rows]
        if disk is not None:
            sizes += [disk.place_of(0)[1]] * disk.slots
        if sizes and (on_gpu or lanes is not None or isinstance(device, QuantizedArena)):
            self._area = StagingArea(max(sizes), on_gpu)
            if on_gpu and sum(sizes) > available():
                self.read_past_cache()

    def read_past_cache(self) -> None:
        """From now on, where the file systems can."""
        if self._shards is not None:
            self._shards.read_past_cache()
        if self._disk is not None:
            self._disk.file.direct = True

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
        """Copy blocks down, in order: to disk as soon as it takes them.

        Returns the moves, of earlier calls too, whose target could not be written.
        """
        failed: list[Move] = []
        if self._writer is not None:
            for move, error in self._writer.settle():
                self._lost.warn(self._reason(error))
                failed.append(move)
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

    def read(self, loads: Sequence[Move]) -> BlockReading:
        """Begin to read blocks for the device: those on disk in threads of their own."""
        reading: BlockReading
        if self._area is not None:
            reading = StagedReading(self._device, self._host, loads, self._shape, self._area, self._lanes)
        else:
            reading = InPlaceReading(self._device, self._host, loads, self._shape, self._buffers)
        reading.begin(self._readers, self._runs(loads, READERS))
        return reading

    def lift(self, moves: Sequence[Move]) -> BlockLift:
        """Begin to read blocks for the host tier, behind everything that a request waits for."""
        assert self._host is not None
        return BlockLift(self._host, moves, self._ahead, self._runs(moves, AHEAD))

    @property
    def writing(self) -> bool:
        """Whether a block is on its way to disk."""
        return self._writer is not None and self._writer.writing

    def flush(self, within: float) -> None:
        """Wait until all blocks on their way to disk are there, `within` seconds at most."""
        if self._writer is not None:
            self._writer.flush(within)

    def counts(self) -> dict[str, int]:
        """For metrics."""
        squeezed = self._device.crowded_out if isinstance(self._device, QuantizedArena) else 0
        refused = self._shards.refused if self._shards is not None else 0
        refused += self._disk.file.refused if self._disk is not None else 0
        return {"squeezed_blocks": squeezed, "refused_direct_reads": refused}

    def warm_up(self, slots: int) -> None:
        """Make the first `slots` of the device's memory real, which the first reads will fill."""
        if self._device.device.type == "cpu":
            tensors = [*self._device.keys, *self._device.values]
            self._ahead.submit(populate, [tensor[:slots] for tensor in tensors])

    def close(self) -> None:
        """Wait for reads that are under way and close files."""
        if self._area is not None:
            self._area.close()
        self._readers.shutdown(cancel_futures=True)
        self._ahead.shutdown(cancel_futures=True)
        if self._writer is not None:
            self._writer.close()
        if self._disk is not None:
            self._disk.close()
        if self._shards is not None:
            self._shards.close()
        for warning in (self._bad_shard, self._bad_copy, self._lost):
            warning.flush()

    def _runs(self, moves: Sequence[Move], readers: int) -> list[Run]:
        """How to read those that are on disk: in long runs that keep all `readers` busy, or one by one."""
        wanted = [self._wanted(place, move) for place, move in enumerate(moves) if move.source > Tier.HOST]
        if self._area is None:
            return alone(wanted)
        share = sum(block.size for block in wanted) // readers
        return joined(wanted, min(max(share, SHORTEST), self._area.size))

    def _wanted(self, place: int, move: Move) -> Wanted:
        if move.source is Tier.SHARDS:
            assert self._shards is not None
            row = self._shards.rows[move.source_slot]
            file = self._shards.file(row.shard)
            return Wanted(place, file, row.offset, row.bytes, partial(self._of_shards, row))
        assert self._writer is not None and self.index is not None
        prove = partial(self._of_disk, self.index.hash_of(move.node), self._is_first(move.node))
        return Wanted(place, *self._writer.place_of(move.source_slot), prove)

    def _of_shards(self, row: BlockRow, came: Came) -> Encoded | None:
        assert self._shards is not None
        try:
            data = self._shards.check(row, came)
        except BadBlock as error:
            self._bad_shard.warn(str(error))
            self._rows.pop(row.hash, None)
            return None
        return Encoded(self._codecs[row.codec], data, row.depth == 0)

    def _of_disk(self, block: BlockHash, first: bool, came: Came) -> Encoded | None:
        assert self._disk is not None
        data = self._disk.check(block, came)
        if data is None:
            self._bad_copy.warn(f"block {block.hex()}")
            return None
        return Encoded(self._codec, data, first)

    def _write_back(self, move: Move) -> bool:
        assert self._writer is not None and self.index is not None
        first = self._is_first(move.node)
        data: Bytes
        try:
            if move.source is Tier.DEVICE:
                (coded,) = encode_from(self._device, self._codec, self._shape, [move.source_slot], [first])
                data = coded()
            else:
                assert self._host is not None
                data = self._host.encoded(move.source_slot, first).data
            block = survivor_of(self.index, move.node, move.target_slot)
            if self._writer.put(move, block, data):
                return True
            self._lost.warn("the disk is slower than what leaves memory")
        except KvtoolError as error:
            self._lost.warn(str(error))
        return False

    def _reason(self, error: OSError) -> str:
        assert self._disk is not None
        return f"{self._disk.file.path}: {error.strerror} (make room there, or lower --disk-memory)"

    def _is_first(self, node: int) -> bool:
        assert self.index is not None
        return self.index.parent_of(node)[1] == 0


def survivor_of(index: BlockIndex, node: int, slot: int) -> Survivor:
    """The write-back record's header of a node."""
    parent, depth = index.parent_of(node)
    root = index.root_of(node)
    above = index.hash_of(parent) if parent >= 0 else root
    return Survivor(slot, index.hash_of(node), above, root, depth, index.tokens_of(node))
