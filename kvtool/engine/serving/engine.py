"""From a configuration to an engine that is ready: model, shards, tiers, scheduler."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from kvtool.analysis.learned import FEWEST_REQUESTS
from kvtool.blocks import DEFAULT_BLOCK_SIZE, BlockHash, namespace
from kvtool.cache.index import BlockIndex
from kvtool.cache.policies import POLICIES, fitted
from kvtool.cache.policy import Policy
from kvtool.cache.tiers import Tier, TieredPool
from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.load import load_model
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.runner import Runner
from kvtool.engine.compute.warmup import warm_up
from kvtool.engine.serving.capacity import Tiers, make_arena, plan_tiers
from kvtool.engine.serving.chunking import Limits
from kvtool.engine.serving.config import ServeConfig
from kvtool.engine.serving.events import KvEvents, Publisher
from kvtool.engine.serving.lanes import Lanes
from kvtool.engine.serving.public import PublicPrefixes
from kvtool.engine.serving.runtime import Observer, Runtime
from kvtool.engine.serving.scheduler import Scheduler
from kvtool.engine.serving.steps import AtOnce, Queued
from kvtool.engine.storage.codec import BlockCodec, load_codec
from kvtool.engine.storage.host import EncodedHost, HostBlocks, PlainHost
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.layout import BlockShape
from kvtool.engine.storage.outlook import read_outlook
from kvtool.engine.storage.pinned import PinnedHost
from kvtool.engine.storage.reuse import REUSE, read_reuse
from kvtool.engine.storage.shards import ShardSet, open_shards
from kvtool.engine.storage.signature import load_key
from kvtool.engine.storage.store import BlockStore
from kvtool.engine.storage.writeback import WriteBack, bytes_taken, other_areas
from kvtool.errors import KvtoolError
from kvtool.prompts.normalizer import Normalizer

log = logging.getLogger("kvtool.serve")

EXACT = {"codec": "raw"}
"""The codec that loses nothing."""

BACKED_UP_AT_ONCE = 4
"""Blocks copied to the write-back area between two looks at the queue."""

WRITING = 0.005
"""Seconds between two looks at what is being written."""

WRITE_AGAIN = 60.0
"""Seconds after which what could not be written is tried again while nothing else is to do."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Everything behind the API. `model_id` is what requests call the model."""

    config: ServeConfig
    model_id: str
    model: Model
    identity: Identity
    tiers: Tiers
    shards: ShardSet | None
    index: BlockIndex
    public: PublicPrefixes
    scheduler: Scheduler
    store: BlockStore
    runtime: Runtime
    normalizer: Normalizer | None
    events: KvEvents
    publisher: Publisher | None
    lanes: Lanes = field(default_factory=Lanes)

    @property
    def longest(self) -> int:
        """Most tokens of prompt and answer together: the model's positions, or what the pool holds."""
        return min(self.model.config.max_positions, self.tiers.device * self.index.block_size)

    def root(self, tenant: str, salt: str | None) -> BlockHash:
        """Root of the hash chains of a tenant ("" for none) and a request's cache_salt."""
        root = self.identity.root(tenant)
        return root if salt is None else namespace("cache_salt", root.hex(), salt)

    def end(self) -> None:
        """Take no more requests and end those inside. In the event loop."""
        self.lanes.end()
        self.runtime.end()

    def close(self, wait: float) -> None:
        """Finish or cancel requests, save what the disk can keep, close files. A tokenizer that is busy is
        not waited for."""
        self.lanes.end()
        self.runtime.close(wait)
        deadline = time.monotonic() + wait
        self.scheduler.pool.unwritten.clear()
        while self.scheduler.pool.back_up(BACKED_UP_AT_ONCE) and time.monotonic() < deadline:
            self.scheduler.execute_moves()
            self.store.flush(deadline - time.monotonic())
        self.store.flush(deadline - time.monotonic())
        self.store.close()
        if self.publisher is not None:
            self.publisher.close()


def build_engine(config: ServeConfig, observer: Observer) -> Engine:
    """Load everything and start the scheduler. KvtoolError when parts do not fit together."""
    normalizer = Normalizer.load(config.normalizer) if config.normalizer else None
    shards = open_shards(config.shards) if config.shards else None
    spec = config.model or _model_of(shards)
    model = load_model(
        spec, config.device, config.dtype, chat_template=config.chat_template, warn=log.warning
    )
    block_size = config.block_size or DEFAULT_BLOCK_SIZE
    if shards is not None:
        block_size = _agree(shards, model, config)
    if config.signing_key is not None:
        if shards is None:
            raise KvtoolError("--signing-key: there are no shards to be signed", "name them with --shards")
        shards.prove(load_key(config.signing_key))
    policy = load_policy(config, block_size)
    identity = Identity.of_model(model, block_size)
    codec = load_codec({"codec": config.codec_below})
    folder = None if config.disk is None else config.disk / identity.root().hex()
    kept = 0 if folder is None else bytes_taken(folder)
    tiers = plan_tiers(config, model, identity.shape, codec, kept)
    device = make_arena(config, model, identity.shape, tiers)
    area = None
    if folder is not None:
        area = WriteBack(folder, tiers.disk, block_size, tiers.slot_bytes, config.codec_below)
        if others := other_areas(folder):
            log.warning(
                "--disk %s: %d bytes are other models', dtypes' or block sizes' blocks: this server's are "
                "in %s, delete the other folders if no server needs them",
                config.disk,
                others,
                folder.name,
            )
    host = host_blocks(model, device, tiers, identity.shape, codec)
    store = BlockStore(device, identity.shape, codec, host, area, shards)
    encodes = config.codec_below != config.device_codec
    pool = TieredPool(policy, tiers.device, tiers.host, tiers.disk, encodes)
    if shards is not None and codec.config() != EXACT:
        rows = shards.rows
        pool.liftable = lambda row: rows[row].bytes <= tiers.slot_bytes
    index = BlockIndex(pool, block_size, 4 * (tiers.device + tiers.host + tiers.disk) + 4096, store.shard_row)
    store.index = index
    index.public = public = PublicPrefixes(identity.root(), shards)
    on_disk = 0 if shards is None else len(shards.rows)
    if area is not None:
        found = restore(index, pool, area, store.chain_to)
        log.info("%d blocks found in the write-back area %s", found, config.disk)
        on_disk += found
    store.warm_up(min(on_disk, tiers.device))
    runner = Runner(model, device)
    scheduler = Scheduler(
        Queued(runner) if model.device.type == "cuda" else AtOnce(runner.step),
        pool,
        index,
        store,
        Limits(max(config.chunk_tokens, block_size), config.max_running),
        time.monotonic,
        read_outlook(config.shards) if config.shards is not None else None,
    )

    forgiven = time.monotonic()

    def back_up() -> float:
        nonlocal forgiven
        if time.monotonic() >= forgiven + WRITE_AGAIN:
            forgiven = time.monotonic()
            pool.unwritten.clear()
        if store.writing:
            return WRITING
        moves = pool.back_up(BACKED_UP_AT_ONCE)
        scheduler.execute_moves()
        return 0.0 if moves else math.inf

    events = KvEvents(pool, index, time.time)
    publisher = None
    if config.kv_events is not None:
        publisher = Publisher(config.kv_events)
        events.listen(publisher)

    def begin() -> None:
        if model.device.type == "cuda":  # kernels and events take the thread's current device
            torch.cuda.set_device(model.device)
        warm_up(model)

    most = config.max_running + config.max_queue
    runtime = Runtime(scheduler, most, back_up, events.poll, observer, begin)
    runtime.begun.wait()
    model_id = config.model or model.name
    return Engine(
        config,
        model_id,
        model,
        identity,
        tiers,
        shards,
        index,
        public,
        scheduler,
        store,
        runtime,
        normalizer,
        events,
        publisher,
    )


def load_policy(config: ServeConfig, block_size: int) -> Policy:
    """The eviction policy; `fitted` ranks by the reuse model that lies beside the shards, if there is one."""
    if config.policy != fitted.POLICY.name:
        return POLICIES.load(config.policy)
    model = read_reuse(config.shards) if config.shards is not None else None
    if model is None:
        log.warning(
            "--policy fitted: no %s beside shards, ranking as cost does; kvtool prewarm writes it from a log "
            "with times and %d requests",
            REUSE,
            FEWEST_REQUESTS,
        )
        return fitted.POLICY
    return fitted.by_table(model.table, block_size)


def host_blocks(
    model: Model, device: Arena, tiers: Tiers, shape: BlockShape, codec: BlockCodec
) -> HostBlocks | None:
    """The host tier's memory, None where it has none. What loses nothing is kept as the device has it."""
    if not tiers.host:
        return None
    if codec.config() != EXACT:
        return EncodedHost(shape, codec)
    if model.device.type == "cuda":
        return PinnedHost(device, tiers.host, shape, codec)
    return PlainHost(Arena(model, tiers.host, shape.block_size, device="cpu"), shape, codec)


def restore(
    index: BlockIndex, pool: TieredPool, area: WriteBack, chain_to: Callable[[BlockHash], list[int]]
) -> int:
    """Take over what an earlier server wrote, parents first; returns the number of blocks.

    A block whose parent is neither there nor in the shards cannot be reached and is let go.
    """
    found: list[tuple[int, int]] = []
    known: set[int] = set()
    for block in sorted(area.survivors(), key=lambda block: block.depth):
        above = [-1] if block.depth == 0 else chain_to(block.parent)
        if not above:
            continue
        node = index.child(above[-1], block.tokens, block.root)
        if node is None or index.hash_of(node) != block.hash or node in known:
            continue
        known.add(node)
        found.append((node, block.slot))
    pool.adopt(Tier.DISK, found)
    return len(found)


def _model_of(shards: ShardSet | None) -> str:
    if shards is None:
        return "embedded"
    name = shards.manifest.identity.name
    if name != "embedded":
        raise KvtoolError(f"the shards were made with model '{name}'", "name its directory with --model")
    return name


def _agree(shards: ShardSet, model: Model, config: ServeConfig) -> int:
    """The shards' block size, after checking that they were made by this very model."""
    stored = shards.manifest.identity
    size = stored.shape.block_size
    if config.block_size not in (None, size):
        raise KvtoolError(
            f"--block-size {config.block_size}: the shards have blocks of {size} tokens",
            "leave --block-size out",
        )
    differences = stored.differences(Identity.of_model(model, size))
    if differences:
        raise KvtoolError(
            f"{shards.folder} does not fit the model {model.name}: " + "; ".join(differences),
            "run prewarm with this model and another --out, or serve the one the shards were made with",
        )
    return size
