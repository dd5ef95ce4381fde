"""Prewarm: walk the plan's trie over the arena, compute every token once, write shards as it goes.

The forward is the one that serving uses; it runs ahead in a thread of its own while this one encodes,
writes and commits. A run that was interrupted goes on behind the last committed shard file and computes
the same pieces in the same shapes, so what it writes is what the first run would have written.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from math import isnan
from pathlib import Path

from kvtool.ahead import ahead
from kvtool.analysis.plan import Plan
from kvtool.blocks import BlockHash, child_hash
from kvtool.engine.allocation import Allocation, GateFailed, Stored, Verdict, uniform
from kvtool.engine.calibration import query_guide
from kvtool.engine.compute.arena import Block, Blocks
from kvtool.engine.compute.model import Model
from kvtool.engine.schedule import Batch, Piece, batches, chunking, cut_pieces, split
from kvtool.engine.storage.codec import (
    BlockCodec,
    encode_blocks,
    is_exact,
    is_steered,
    load_codec,
    stored_parts,
)
from kvtool.engine.storage.files import exclusive
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.index import BlockRow, block_checksum, index_to_bytes
from kvtool.engine.storage.leaving import Leaving
from kvtool.engine.storage.maintenance import SHARD_BYTES, free_numbers, refuse_strangers, sweep
from kvtool.engine.storage.manifest import MANIFEST, Manifest, ShardFile, commit, sha256, shard_name
from kvtool.engine.storage.rounding import Guide
from kvtool.engine.storage.shards import BadBlock, ShardSet, open_shards
from kvtool.engine.storage.signature import check
from kvtool.engine.storage.writer import Planned, ShardWriter, write_shard
from kvtool.engine.walk import Walk
from kvtool.errors import KvtoolError

AHEAD_BYTES = 256 << 20
"""Blocks that are computed and not yet written take about this much memory at most."""


@dataclass(frozen=True)
class PrewarmConfig:
    """codec: how new blocks are stored, if nothing else is chosen. shard_bytes: about this many a file."""

    codec: str = "raw"
    shard_bytes: int = SHARD_BYTES
    key: bytes | None = None
    """Signs the folder; one that is signed needs it."""
    judge_stored: bool = False
    """Whether codecs are chosen, and so held to their gate, even if no block is missing."""


@dataclass(frozen=True, slots=True)
class PrewarmResult:
    """What a run did, and what the directory now holds.

    tokens_computed: tokens of new blocks, each once. tokens_again: tokens of stored blocks that had to be
    computed once more because new blocks build on them, and of new ones that several devices build on.
    tokens_loaded: the same, but read from shards.
    bits_per_element: over the whole directory. kl: nats per token, as the gate found, or else what the
    directory's chains lose on average, None if one was not measured. verdict: the gate's, if there was
    one; tokens_measured: computed to choose codecs and for the gate.
    """

    blocks: int
    new_blocks: int
    files: int
    bytes: int
    tokens_computed: int
    tokens_again: int
    tokens_loaded: int
    bits_per_element: float
    kl: float | None
    up_to_date: bool
    verdict: Verdict | None = None
    tokens_measured: int = 0
    codecs: Mapping[str, tuple[int, int]] = field(default_factory=dict, compare=False)
    """Name in the index -> (blocks, bytes), over the whole directory."""
    kept: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Name in the index -> blocks of the plan that were stored before."""


def prewarm(
    plan: Plan,
    model: Model,
    folder: Path,
    config: PrewarmConfig,
    progress: Callable[[int], None] = lambda _: None,
    choose: Callable[[Stored], Allocation] | None = None,
    others: Sequence[Model] = (),
) -> PrewarmResult:
    """Make `folder` hold every block of `plan`; blocks that are there already stay as they are.

    `others` are the same model on more devices, which compute files of their own; each device keeps up to a
    file's blocks in memory until its turn to be written comes.
    `choose` gives each row of the plan its codec and is told those of rows that are stored; it is called if a
    block is missing. Where its answer has a plan of its own, that one is made. GateFailed if its gate does
    not hold: then nothing is stored. `progress` gets the number of the plan's tokens that are stored or
    computed so far. KvtoolError when the folder is of another model or holds something else, and when the
    plan is empty.
    """
    if not len(plan):
        raise KvtoolError("nothing to prewarm: the plan is empty", "lower --min-requests or raise --budget")
    new = not folder.exists()
    with exclusive(folder):
        try:
            run = _Run(plan, [model, *others], folder, config, progress, choose)
        except BaseException:
            if new:
                folder.rmdir()
            raise
        return run.go()


def plan_hashes(plan: Plan, identity: Identity) -> list[BlockHash]:
    """Hash of every row of the plan under `identity`'s roots."""
    roots = [identity.root(tenant) for tenant in plan.tenants]
    hashes: list[BlockHash] = []
    for tenant, parent, tokens in zip(plan.tenant.tolist(), plan.parent.tolist(), plan.tokens, strict=True):
        hashes.append(child_hash(roots[tenant] if parent < 0 else hashes[parent], tokens))
    return hashes


class _Run:
    """One prewarm of one folder."""

    def __init__(
        self,
        plan: Plan,
        models: Sequence[Model],
        folder: Path,
        config: PrewarmConfig,
        progress: Callable[[int], None],
        choose: Callable[[Stored], Allocation] | None,
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.config = config
        self.progress = progress
        self.identity = Identity.of_model(models[0], plan.block_size)
        self.hashes = plan_hashes(plan, self.identity)
        self.shards = self._existing()
        self.known: dict[BlockHash, BlockRow] = dict(self.shards.index) if self.shards else {}
        self.models = models
        self.stored = self._stored_codecs()
        asked = config.judge_stored or len(self.stored) < len(self.hashes)
        plain = uniform(config.codec, plan, self.identity.shape)
        self.chosen = choose(self.stored) if choose and asked else plain
        if self.chosen.verdict is not None and not self.chosen.verdict.holds:
            raise GateFailed(self.chosen.verdict)
        if self.chosen.plan is not None:
            plan = self.chosen.plan
            self.hashes = plan_hashes(plan, self.identity)
            self.stored = self._stored_codecs()
        self.plan = replace(plan, bytes=self.chosen.sizes(plan, self.identity.shape))
        self.walks: list[Walk] = []
        self.guide: Guide | None = None
        self.blocks_done = len(self.stored)

    def go(self) -> PrewarmResult:
        """Bring the folder up to date, one committed shard file after the other."""
        sweep(self.folder)
        pieces = cut_pieces(self.plan)
        even = -(-int(self.plan.bytes.sum()) // len(self.models))  # so that every device has a file
        limit = min(self.config.shard_bytes, even) if len(self.models) > 1 else self.config.shard_bytes
        work = batches(self.plan, pieces, lambda row: self.hashes[row] not in self.known, limit)
        manifest = self.shards.manifest if self.shards else self._new_manifest()
        hits = dict(zip(self.hashes, self.plan.expected.tolist(), strict=True))
        self.known = {
            name: replace(row, expected_hits=hits.get(name, row.expected_hits))
            for name, row in self.known.items()
        }
        before = manifest if self.shards else None
        up_to_date = not work and self._is_current(manifest)
        if not up_to_date:
            self._store(pieces, work, before, manifest)
        if self.shards:
            self.shards.close()
        return self._result(sum(len(batch.stored) for batch in work), up_to_date)

    def _store(
        self, pieces: list[Piece], work: list[Batch], before: Manifest | None, manifest: Manifest
    ) -> None:
        new = {self.chosen.names[row] for batch in work for row in batch.stored}
        names = {**manifest.codecs, **{name: self.chosen.codecs[name].config() for name in new}}
        roots = {**manifest.roots, **{tenant: self.identity.root(tenant) for tenant in self.plan.tenants}}
        manifest = replace(manifest, codecs=dict(sorted(names.items())), roots=roots)
        numbers = free_numbers({file.number for file in manifest.files})
        if not work:  # only expected hits have changed, or the last commit was cut short
            before = self._commit(before, manifest, complete=True)
            return
        if any(is_steered(self.chosen.codecs[name], self.identity.shape) for name in new):
            self.guide = query_guide(self.models[0])  # now: a forward that runs ahead must not be watched
        self.walks = [Walk(self.plan, model, self._exact) for model in self.models]
        weight = self.identity.shape.elements * self.models[0].dtype.itemsize
        lead = AHEAD_BYTES
        if len(self.walks) > 1:
            lead = max(lead, weight * max(len(batch.stored) for batch in work))
        shares = split(pieces, work, len(self.walks), self.plan.block_size)
        with ExitStack() as stack:
            streams = [
                stack.enter_context(
                    closing(ahead(walk.blocks(share), lead, lambda item: weight * len(item[0])))
                )
                for walk, share in zip(self.walks, shares, strict=True)
            ]
            for at, batch in enumerate(work):
                file = self._write(batch, next(numbers), streams[at % len(streams)])
                files = tuple(sorted((*manifest.files, file), key=lambda file: file.number))
                last = at + 1 == len(work)
                manifest = before = self._commit(before, replace(manifest, files=files), complete=last)

    def _commit(self, before: Manifest | None, manifest: Manifest, complete: bool) -> Manifest:
        index = index_to_bytes(self.known.values(), self.plan.block_size)
        return commit(self.folder, before, replace(manifest, complete=complete), index, self.config.key)

    def _write(self, batch: Batch, number: int, blocks: Iterator[tuple[list[int], Blocks]]) -> ShardFile:
        """Stream a file's blocks into it as they come; compressed ones wait until all sizes are known."""
        encoded = self._encoded(batch, blocks)
        sizes = self.plan.bytes[batch.stored].tolist()
        if any(self.chosen.codec_of(row).compressed for row in batch.stored):
            encoded = iter(waiting := list(encoded))
            sizes = [len(data) for data in waiting]
        planned = []
        for row, size in zip(batch.stored, sizes, strict=True):
            codec, first = self.chosen.codec_of(row), bool(self.plan.depth[row] == 0)
            parts = stored_parts(codec, self.identity.shape, first, size)
            planned.append(Planned(self.hashes[row], tuple(parts)))
        with write_shard(self.folder / shard_name(number), planned) as writer:
            for row, data in zip(batch.stored, encoded, strict=True):
                self._append(row, data, number, writer)
        return writer.file()

    def _encoded(self, batch: Batch, blocks: Iterator[tuple[list[int], Blocks]]) -> Iterator[bytes]:
        """What the file will hold, block by block. A forward's blocks are encoded while those of the one
        before are written.
        """
        coming = self._leaving(batch, blocks)
        before = next(coming, [])
        while before:
            after = next(coming, [])
            for leaving, number in before:
                yield leaving.row(number)
                self.blocks_done += 1
                self.progress(self.blocks_done * self.plan.block_size)
            before = after

    def _leaving(
        self, batch: Batch, blocks: Iterator[tuple[list[int], Blocks]]
    ) -> Iterator[list[tuple[Leaving, int]]]:
        """For each forward its blocks in order, and where they are. Blocks that are coded alike are coded
        together, on the device that computed them, and leave it in one copy."""
        waiting = iter(batch.stored)
        left = len(batch.stored)
        while left:
            rows, made = next(blocks)
            assert rows == [next(waiting) for _ in rows]
            left -= len(rows)
            alike: dict[tuple[BlockCodec, bool], list[int]] = {}
            for place, row in enumerate(rows):
                kind = self.chosen.codec_of(row), bool(self.plan.depth[row] == 0)
                alike.setdefault(kind, []).append(place)
            found: dict[int, tuple[Leaving, int]] = {}
            for (codec, first), places in alike.items():
                some = [(keys[places], values[places]) for keys, values in made]
                coded = encode_blocks(codec, self.identity.shape, some, first, self.guide)
                leaving = Leaving(codec, self.identity.shape, *coded)
                found.update({place: (leaving, number) for number, place in enumerate(places)})
            yield [found[place] for place in range(len(rows))]

    def _exact(self, row: int) -> Block | None:
        """A stored block that can stand in for a computed one."""
        name = self.hashes[row]
        if self.shards is None or name not in self.shards.index:  # another device's file will hold it
            return None
        codec = load_codec(self.shards.manifest.codecs[self.shards.index[name].codec])
        if not is_exact(codec, self.identity.shape):
            return None
        try:
            return list(self.shards.read_block(name))
        except BadBlock:
            return None

    def _append(self, row: int, data: bytes, number: int, writer: ShardWriter) -> None:
        name = self.hashes[row]
        parent = int(self.plan.parent[row])
        above = (
            self.identity.root(self.plan.tenants[self.plan.tenant[row]])
            if parent < 0
            else self.hashes[parent]
        )
        writer.append(data)
        self.known[name] = BlockRow(
            hash=name,
            parent=above,
            depth=int(self.plan.depth[row]),
            tokens=self.plan.tokens[row],
            shard=number,
            row=len(writer.offsets) - 1,
            offset=writer.offsets[-1],
            bytes=len(data),
            codec=self.chosen.names[row],
            checksum=block_checksum(name, data),
            expected_hits=float(self.plan.expected[row]),
            kl=None if isnan(self.chosen.kl[row]) else float(self.chosen.kl[row]),
        )

    def _stored_codecs(self) -> Stored:
        """Rows of the plan that the folder has, with their codecs."""
        if self.shards is None:
            return {}
        codecs = {name: load_codec(config) for name, config in self.shards.manifest.codecs.items()}
        rows = ((row, self.known[name].codec) for row, name in enumerate(self.hashes) if name in self.known)
        return {row: (codec, codecs[codec]) for row, codec in rows}

    def _existing(self) -> ShardSet | None:
        """The folder's shards; damaged files are forgotten, so that their blocks are computed again."""
        if not (self.folder / MANIFEST).exists():
            refuse_strangers(self.folder)
            return None
        shards = open_shards(self.folder)
        check(self.folder, self.config.key, shards.manifest.signed_bytes(), shards.manifest.signature)
        fields = shards.manifest.identity.differences(self.identity)
        cuts = shards.manifest.chunking
        if cuts is not None and cuts != chunking(self.plan.block_size):
            fields.append(f"chunking: {cuts} / {chunking(self.plan.block_size)}")
        if fields:
            raise KvtoolError(
                f"{self.folder}: its shards and this run differ in {'; '.join(fields)}", "name another --out"
            )
        whole = [file for file in shards.manifest.files if _has_size(self.folder / file.name, file.bytes)]
        if len(whole) == len(shards.manifest.files):
            return shards
        numbers = {file.number for file in whole}
        rows = [row for row in shards.rows if row.shard in numbers]
        manifest = replace(shards.manifest, files=tuple(whole), complete=False)
        return ShardSet(self.folder, manifest, rows, {row.hash: row for row in rows}, {}, {})

    def _new_manifest(self) -> Manifest:
        cuts = chunking(self.plan.block_size)
        return Manifest(self.identity, {}, {}, cuts, (), (), complete=False)

    def _is_current(self, manifest: Manifest) -> bool:
        digest = sha256(index_to_bytes(self.known.values(), self.plan.block_size))
        return manifest.complete and manifest.index_digests == (digest,)

    def _result(self, new_blocks: int, up_to_date: bool) -> PrewarmResult:
        rows = list(self.known.values())
        stored = sum(row.bytes for row in rows)
        return PrewarmResult(
            blocks=len(rows),
            new_blocks=new_blocks,
            files=len({row.shard for row in rows}),
            bytes=stored,
            tokens_computed=sum(walk.computed for walk in self.walks),
            tokens_again=sum(walk.again for walk in self.walks),
            tokens_loaded=sum(walk.loaded for walk in self.walks),
            bits_per_element=8 * stored / (len(rows) * self.identity.shape.elements),
            kl=self.chosen.verdict.kl if self.chosen.verdict else _chain_kl(rows),
            up_to_date=up_to_date,
            verdict=self.chosen.verdict,
            tokens_measured=self.chosen.tokens,
            codecs=_by_codec(rows),
            kept=dict(sorted(Counter(name for name, _ in self.stored.values()).items())),
        )


def _chain_kl(rows: list[BlockRow]) -> float | None:
    """Nats that stored chains lose, each the sum of its blocks', averaged by expected hits of their ends."""
    total = weight = 0.0
    along: dict[BlockHash, float] = {}
    parents = {row.parent for row in rows}
    for row in sorted(rows, key=lambda row: row.depth):
        if row.kl is None:
            return None
        along[row.hash] = along.get(row.parent, 0.0) + row.kl
        if row.hash not in parents:
            total += along[row.hash] * row.expected_hits
            weight += row.expected_hits
    return total / weight if weight else 0.0


def _by_codec(rows: list[BlockRow]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for row in sorted(rows, key=lambda row: row.codec):
        blocks, size = found.get(row.codec, (0, 0))
        found[row.codec] = (blocks + 1, size + row.bytes)
    return found


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size
