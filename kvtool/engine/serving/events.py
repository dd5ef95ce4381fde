"""KV events: what is stored and removed in which tier, in the form in which vLLM publishes it to routers.

Found by comparing what the tiers hold with what they held, so that nothing can be forgotten; this costs
nothing while nobody listens. A new listener first gets all that is there.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtool.blocks import BlockHash
from kvtool.cache.index import BlockIndex
from kvtool.cache.pool import Pool
from kvtool.cache.tiers import Tier, TieredPool
from kvtool.errors import KvtoolError

Event = dict[str, Any]
"""BlockStored or BlockRemoved, by the field names of vLLM's `distributed/kv_events.py`; `type` says which."""

Listener = Callable[[float, list[Event]], None]
"""Gets (Unix time, events) of a step, in the scheduler's thread."""

MEDIUM = {Tier.DEVICE: "GPU", Tier.HOST: "CPU", Tier.DISK: "DISK"}
"""vLLM's names, where it has one; the device is called so whatever it is."""


class KvEvents:
    """Watches the tiers of one server. Used by the scheduler's thread only."""

    def __init__(self, pool: TieredPool, index: BlockIndex, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._index = index
        self._clock = clock
        self._listeners: list[Listener] = []
        self._held: dict[Tier, dict[int, BlockHash]] = {}

    def listen(self, listener: Listener) -> None:
        """Tell `listener` what is there, and from now on what changes."""
        self.poll()
        for tier, pool in self._tiers():
            self._held.setdefault(tier, self._now(pool))
        listener(
            self._clock(), [event for tier, held in self._held.items() for event in self._stored(tier, held)]
        )
        self._listeners.append(listener)

    def leave(self, listener: Listener) -> None:
        """Tell it nothing more."""
        self._listeners.remove(listener)
        if not self._listeners:
            self._held.clear()

    def poll(self) -> None:
        """Find out what has changed since the last time."""
        if not self._listeners:
            return
        events: list[Event] = []
        for tier, pool in self._tiers():
            before, now = self._held[tier], self._now(pool)
            gone = [block for node, block in before.items() if now.get(node) != block]
            if gone:
                hashes = [short(block) for block in gone]
                events.append({"type": "BlockRemoved", "block_hashes": hashes, "medium": MEDIUM[tier]})
            new = {node: block for node, block in now.items() if before.get(node) != block}
            events += self._stored(tier, new)
            self._held[tier] = now
        if events:
            for listener in self._listeners:
                listener(self._clock(), events)

    def _tiers(self) -> list[tuple[Tier, Pool]]:
        return [(Tier.DEVICE, self._pool.device), *self._pool.lower.items()]

    def _now(self, pool: Pool) -> dict[int, BlockHash]:
        nodes: NDArray[np.intp] = np.flatnonzero(pool.state.slot[: pool.nodes] >= 0)
        return {node: self._index.hash_of(node) for node in nodes.tolist()}

    def _stored(self, tier: Tier, blocks: dict[int, BlockHash]) -> list[Event]:
        """One event for each run of blocks that follow each other, parents first."""
        order = sorted(blocks, key=lambda node: (self._index.parent_of(node)[1], node))
        runs: dict[int, list[int]] = {}
        for node in order:
            run = runs.pop(self._index.parent_of(node)[0], [])
            runs[node] = [*run, node]
        return [self._event(tier, run) for run in runs.values()]

    def _event(self, tier: Tier, run: list[int]) -> Event:
        parent = self._index.parent_of(run[0])[0]
        return {
            "type": "BlockStored",
            "block_hashes": [short(self._index.hash_of(node)) for node in run],
            "parent_block_hash": None if parent < 0 else short(self._index.hash_of(parent)),
            "token_ids": [int(token) for node in run for token in self._index.tokens_of(node)],
            "block_size": self._index.block_size,
            "lora_id": None,
            "medium": MEDIUM[tier],
            "lora_name": None,
        }


def short(block: BlockHash) -> int:
    """A block's name in events: 64 bits, as vLLM sends them by default."""
    return int.from_bytes(block[-8:], "big")


class Publisher:
    """Publishes to ZeroMQ subscribers as vLLM does: topic, sequence number, and a batch in msgpack.

    A subscriber that is too slow loses batches and sees it by the numbers; /kv/events tells him all again.
    """

    def __init__(self, endpoint: str, topic: str = "kv-events") -> None:
        """Binds `endpoint`, such as tcp://127.0.0.1:5557; KvtoolError if that cannot be."""
        try:
            import msgpack
            import zmq
        except ImportError as error:
            raise KvtoolError(f"--kv-events needs {error.name}", "pip install 'kvtool[events]'") from error
        self._pack = msgpack.packb
        self._topic = topic.encode()
        self._number = 0
        self._socket: Any = zmq.Context.instance().socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._socket.close()
            raise KvtoolError(f"--kv-events {endpoint}: {error.strerror}") from error

    def __call__(self, time: float, events: list[Event]) -> None:
        """Send one batch; never waits."""
        batch = self._pack([time, events, None])
        self._socket.send_multipart([self._topic, self._number.to_bytes(8, "big"), batch])
        self._number += 1

    def close(self) -> None:
        """Publish no more."""
        self._socket.close()
