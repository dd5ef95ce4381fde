"""Tiers: device, host and disk pools over the same nodes, and shards below them that never change.

A block that leaves a tier moves to the next one that can take it, unless a copy is below already. One that is
promoted keeps its copy on disk, for a restart, but not in the host tier: the two capacities add up, where
copies of what was used last would push out just what the device has not. Bookkeeping only: what must be
copied is listed as moves, in order, and whoever owns the tensors executes `take_moves()` before he writes a
slot or reads one for a load. A request's life:

    lease = pool.acquire(nodes, want, now, session, most)   # device hits pinned; lease.loads to be read
    store.execute(pool.take_moves())
    pool.settle(lease, loaded)                              # the first `loaded` of lease.loads are here
    pool.commit / extend / append / release                 # as in Pool; take_moves() after extend
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from kvtool.cache.policy import Policy
from kvtool.cache.pool import STATISTICS, Lease, Pool


class Tier(IntEnum):
    """Fastest first. Shards are written by `kvtool prewarm` and only read here."""

    DEVICE = 0
    HOST = 1
    DISK = 2
    SHARDS = 3


class Move(NamedTuple):
    """Copy block `node` from a slot of one tier to a slot of another."""

    node: int
    source: Tier
    source_slot: int
    target: Tier
    target_slot: int


@dataclass(slots=True)
class TieredLease(Lease):
    """A lease whose blocks [hit, hit + len(loads)) can be read from a lower tier into their slots."""

    loads: list[Move] = field(default_factory=list)
    loaded: int = 0


@dataclass(slots=True)
class Staging:
    """Blocks on their way up to the host tier before anybody asked: `moves` are still to be read.

    `held` are in the host tier and stay there until `unstage`. `land` and `abandon` settle the moves.
    """

    moves: list[Move]
    held: list[int]


class TieredPool:
    """Pools by tier; `device` slots are what leases hold. A capacity of 0 leaves a tier out.

    encodes: host and disk keep blocks in an encoding that loses something. A block is then encoded once in
    its life: one that was decoded from a lower copy, or that the shards have, is not encoded on its way down.
    """

    def __init__(
        self, policy: Policy, device: int, host: int = 0, disk: int = 0, encodes: bool = False
    ) -> None:
        self.device = Pool(device, policy)
        self.lower: dict[Tier, Pool] = {}
        for tier, capacity in ((Tier.HOST, host), (Tier.DISK, disk)):
            if capacity:
                self.lower[tier] = Pool(capacity, policy, above=self.device)
        self._shard_row: dict[int, int] = {}
        self._moves: list[Move] = []
        self._encodes = encodes
        self._decoded: set[int] = set()
        self.liftable: Callable[[int], bool] = lambda row: True
        """Whether a row of the shards fits into a slot of the host tier as it is stored."""
        self.lost = 0
        """Blocks that left the last tier that had them: computed anew if asked for."""
        self.crowded = 0
        """Demotions that found every block of a tier held."""
        self._spare: dict[int, None] = {}
        """Blocks that `back_up` has copied: until they leave memory their disk slots are anybody's."""
        self.unwritten: set[int] = set()
        """Blocks that the disk tier could not take: `back_up` leaves them alone until this is cleared."""
        self.broken = 0
        """Copies discarded as bad; blocks below such a one are unreachable until it is computed again."""

    def add_node(self, parent: int, shard_row: int = -1) -> int:
        """A new block identity below `parent` (-1: a first block), at `shard_row` of the shards if >= 0."""
        node = self.device.add_node(parent)
        if shard_row >= 0:
            self._shard_row[node] = shard_row
        return node

    def renew_node(self, node: int, parent: int, shard_row: int = -1) -> None:
        """Give a forgotten id, resident nowhere, to a new identity."""
        self.device.renew_node(node, parent)
        self._decoded.discard(node)
        self._spare.pop(node, None)
        self.unwritten.discard(node)
        self._shard_row.pop(node, None)
        if shard_row >= 0:
            self._shard_row[node] = shard_row

    def adopt(self, tier: Tier, blocks: list[tuple[int, int]]) -> None:
        """Fill a lower tier with (node, slot) that survived a restart, before anything else happens."""
        self.lower[tier].adopt(blocks)

    def tier_of(self, node: int) -> Tier | None:
        """The fastest tier that holds `node`, None if none does."""
        if self.device.slot_of(node) >= 0:
            return Tier.DEVICE
        for tier, pool in self.lower.items():
            if pool.slot_of(node) >= 0:
                return tier
        return Tier.SHARDS if node in self._shard_row else None

    def resident(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Which nodes are in a tier that is not the shards, bool [nodes]."""
        n = self.device.nodes
        held = self.device.state.slot[:n] >= 0
        for pool in self.lower.values():
            held |= pool.state.slot[:n] >= 0
        return held

    def locate(self, nodes: list[int]) -> list[Tier]:
        """The tiers of the longest prefix of `nodes` that is in some tier."""
        found: list[Tier] = []
        for node in nodes:
            tier = self.tier_of(node)
            if tier is None:
                break
            found.append(tier)
        return found

    def acquire(
        self, nodes: list[int], want: int, now: float, session: str | None = None, most: int | None = None
    ) -> TieredLease | None:
        """`Pool.acquire`, and loads for the blocks that follow the device hits in lower tiers.

        `most` bounds hits and loads together. A load's source is held until `settle`.
        """
        lease = self.device.acquire(nodes, want, now, session, most)
        if lease is None:
            return None
        tiered = TieredLease(lease.nodes, lease.hit, lease.published, lease.slots, lease.evicted)
        for index in range(lease.hit, len(nodes) if most is None else min(most, len(nodes))):
            source = self._source(nodes[index])
            if source is None:
                break
            tier, slot = source
            tiered.loads.append(Move(nodes[index], tier, slot, Tier.DEVICE, lease.slots[index]))
            if tier in self.lower:
                self.lower[tier].pin([nodes[index]])
        self._demote_evicted(tiered)
        return tiered

    def settle(self, lease: TieredLease, loaded: int, bad: bool = True) -> None:
        """The first `loaded` of `lease.loads` are in their slots: publish them; the rest is to be computed.

        The copy of the first block that was not loaded is discarded if it is `bad`, kept if it was late.
        """
        for move in lease.loads:
            if move.source in self.lower:
                self.lower[move.source].unpin([move.node])
        if self._encodes:
            self._decoded.update(move.node for move in lease.loads[:loaded])
        if bad and loaded < len(lease.loads):
            self.discard(lease.loads[loaded].node, lease.loads[loaded].source)
        if not self._encodes:  # else the encoded copy is the one that there will be
            for move in lease.loads[:loaded]:
                if move.source is Tier.HOST:
                    self.lower[Tier.HOST].discard(move.node)
        lease.loads = []
        lease.loaded = loaded
        self.device.commit(lease, lease.hit + loaded)

    def stage(self, nodes: list[int], most: int) -> Staging:
        """Bring the located prefix of `nodes` up to the host tier: slots for at most `most` blocks of it.

        No use is counted, so that a guess does not change a block's rank. Sources are held until then.
        """
        host, disk = self.lower[Tier.HOST], self.lower.get(Tier.DISK)
        tiers = self.locate(nodes)
        held = [node for node, tier in zip(nodes, tiers, strict=False) if tier is Tier.HOST][:most]
        host.pin(held)
        below = [node for node, tier in zip(nodes, tiers, strict=False) if tier > Tier.HOST]
        below = below[: most - len(held)]
        on_disk = [node for node in below if disk is not None and disk.slot_of(node) >= 0]
        if disk is not None:
            disk.pin(on_disk)  # all of them: making room for one could push out the next
        staging = Staging([], held)
        for node in below:
            source = self._source(node)
            assert source is not None
            if source[0] is Tier.SHARDS and not self.liftable(source[1]):
                break
            target, victim = host.take()
            if target < 0:
                break
            if victim >= 0:
                self._demote(victim, Tier.HOST, target)
            staging.moves.append(Move(node, *source, Tier.HOST, target))
        if disk is not None:
            disk.unpin(on_disk[sum(move.source is Tier.DISK for move in staging.moves) :])
        return staging

    def land(self, staging: Staging, count: int) -> None:
        """The first `count` of `staging.moves` are in their host slots."""
        host = self.lower[Tier.HOST]
        for move in staging.moves[:count]:
            host.place(move.node, move.target_slot)
            host.pin([move.node])
            staging.held.append(move.node)
            if move.source in self.lower:
                self.lower[move.source].unpin([move.node])
        del staging.moves[:count]

    def abandon(self, staging: Staging) -> None:
        """What has not arrived will not be read."""
        for move in staging.moves:
            self.lower[Tier.HOST].give_back(move.target_slot)
            if move.source in self.lower:
                self.lower[move.source].unpin([move.node])
        staging.moves = []

    def unstage(self, staging: Staging) -> None:
        """Let go of what was staged; all of it has landed or was abandoned."""
        assert not staging.moves
        self.lower[Tier.HOST].unpin(staging.held)
        staging.held = []

    def extend(self, lease: TieredLease, blocks: int) -> bool:
        """Lease `blocks` more private slots; False (and what was got is kept) when the pool is held."""
        done = self.device.extend(lease, blocks)
        self._demote_evicted(lease)
        return done

    def append(self, lease: TieredLease, node: int, now: float, session: str | None = None) -> None:
        """Name the request's next block, computed while decoding; it counts as used once."""
        self.device.touch([node], now, session)
        lease.nodes.append(node)

    def commit(self, lease: TieredLease, upto: int) -> None:
        """Publish blocks [lease.published, upto), whose slots are filled."""
        self.device.commit(lease, upto)

    def release(self, lease: TieredLease, output_tokens: int = -1) -> None:
        """End a settled lease; output_tokens as in `Pool.release`."""
        assert not lease.loads
        self.device.release(lease, output_tokens)

    def take_moves(self) -> list[Move]:
        """The moves since the last call, in the order in which they must be executed."""
        moves, self._moves = self._moves, []
        return moves

    def discard(self, node: int, tier: Tier) -> bool:
        """Forget a lower tier's copy that proved bad; False if someone else holds it."""
        if tier is Tier.SHARDS:
            self._shard_row.pop(node, None)
        elif not self.lower[tier].discard(node):
            return False
        self._spare.pop(node, None)
        self.broken += 1
        return True

    def back_up(self, most: int) -> list[Move]:
        """Copy up to `most` blocks to free disk slots while nothing else is to do, parents first.

        What was used last goes first, so that a restart finds the hot set. The moves are also queued. A copy
        gives way to what leaves memory.
        """
        disk = self.lower.get(Tier.DISK)
        if disk is None:
            return []
        state = self.device.state
        waiting = np.flatnonzero(self.resident() & (disk.state.slot[: disk.nodes] < 0))
        waiting = waiting[np.lexsort((state.depth[waiting], -state.turn[waiting]))]
        moves: list[Move] = []
        for node in waiting.tolist():
            parent = int(state.parent[node])
            safe = parent < 0 or disk.slot_of(parent) >= 0 or parent in self._shard_row
            if node in self._shard_row or node in self.unwritten or not safe:
                continue
            host = self.lower.get(Tier.HOST)
            if host is not None and host.slot_of(node) >= 0:  # its bytes, should it be encoded there
                tier, source = Tier.HOST, host
            elif node not in self._decoded:
                tier, source = Tier.DEVICE, self.device
            else:
                continue
            if len(moves) == most or not disk.free():
                break
            target, _ = disk.take()
            moves.append(Move(node, tier, source.slot_of(node), Tier.DISK, target))
            disk.place(node, target)
            self._spare[node] = None
        self._moves += moves
        return moves

    def evict(self, nodes: list[int]) -> int:
        """Drop `nodes` and all below them from device, host and disk. Returns copies dropped.

        Held blocks stay, and so does all that leads to them.
        """
        parent = self.device.state.parent
        doomed = set(nodes)
        needed: set[int] = set()
        dropped = 0
        members = np.flatnonzero(self.resident())
        by_depth = members[np.argsort(self.device.state.depth[members], kind="stable")]
        for node in by_depth.tolist():
            if int(parent[node]) in doomed:
                doomed.add(node)
        for node in reversed(by_depth.tolist()):
            if node in doomed and node not in needed:
                dropped += self.device.drop(node)
                self._decoded.discard(node)
                dropped += sum(pool.drop(node) for pool in self.lower.values())
            if self._in_some_pool(node):
                needed.add(int(parent[node]))
        return dropped

    def clear(self) -> int:
        """Drop all that no lease holds from device, host and disk. Returns copies dropped."""
        return self.evict([int(node) for node in np.flatnonzero(self.resident())])

    def check(self) -> None:
        """Assert every invariant; slow. A parent is within reach unless a fault took its copy."""
        for pool in (self.device, *self.lower.values()):
            pool.check()
        for name in STATISTICS:
            for pool in self.lower.values():
                assert getattr(pool.state, name) is getattr(self.device.state, name), f"{name} is not shared"
        if self.crowded or self.broken:
            return
        for tier, pool in ((Tier.DEVICE, self.device), *self.lower.items()):
            for node in np.flatnonzero(pool.state.slot[: pool.nodes] >= 0).tolist():
                parent = int(pool.state.parent[node])
                if parent >= 0:
                    above = self.tier_of(parent)
                    assert above is not None, "a block's parent is in no tier"
                    assert above <= tier or above is Tier.SHARDS, "a block's parent is in a slower tier"

    def _in_some_pool(self, node: int) -> bool:
        return any(pool.slot_of(node) >= 0 for pool in (self.device, *self.lower.values()))

    def _source(self, node: int) -> tuple[Tier, int] | None:
        for tier, pool in self.lower.items():
            if pool.slot_of(node) >= 0:
                return tier, pool.slot_of(node)
        row = self._shard_row.get(node)
        return None if row is None else (Tier.SHARDS, row)

    def _demote_evicted(self, lease: TieredLease) -> None:
        for node, slot in lease.evicted:
            self._demote(node, Tier.DEVICE, slot)
        lease.evicted = []

    def _demote(self, node: int, tier: Tier, slot: int) -> None:
        """`node` has just left `slot` of `tier`: find a place below, which may push another block down."""
        if tier is Tier.DEVICE and self._encodes and (node in self._decoded or node in self._shard_row):
            self._decoded.discard(node)
            self._spare.pop(node, None)
            self.lost += self.tier_of(node) is None
            return
        for below, pool in self.lower.items():
            if below <= tier:
                continue
            if below is Tier.DISK:
                self._spare.pop(node, None)
            if pool.slot_of(node) >= 0 or (below is Tier.DISK and node in self._shard_row):
                return
            if below is Tier.DISK and not pool.free():
                self._drop_a_spare()
            target, victim = pool.take()
            if target < 0:
                self.crowded += 1
                continue
            if victim >= 0:
                self._demote(victim, below, target)
            self._moves.append(Move(node, tier, slot, below, target))
            pool.place(node, target)
            return
        if self.tier_of(node) is None:
            self.lost += 1

    def _drop_a_spare(self) -> None:
        """Free a disk slot, if there is a copy whose block is in memory or on its way down from there."""
        while self._spare and not self.lower[Tier.DISK].discard(self._spare.popitem()[0]):
            continue
