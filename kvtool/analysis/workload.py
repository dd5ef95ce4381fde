"""The workload: a log as columns over a block trie, in order of arrival. All analysis reads this.

The trie is built once at a small base block; coarser block sizes follow exactly, because a block of
B tokens is known if and only if the base blocks that make it up are.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit, types
from numpy.typing import NDArray

from kvtool.analysis.trie import BlockTrie
from kvtool.blocks import BlockHash, TokenIds, child_hash, namespace
from kvtool.errors import KvtoolError
from kvtool.logs.traces import TraceBatch
from kvtool.requests import Request
from kvtool.tokens import PromptEncoder, batches

Space = tuple[str | None, str | None]
"""(model, tenant): requests of different spaces never share a block."""

META = pa.schema([("id", pa.string()), ("file", pa.string()), ("row", pa.int64())])
"""Where each request came from."""


@dataclass(frozen=True)
class Workload:
    """r requests in order of arrival over n distinct blocks. Arrays are read-only by convention.

    arrival: µs UTC, -1 unknown; session: -1 none; output_tokens: -1 unknown. leaf: deepest node of the
    prompt, -1 if it has no full block; partial: that node is a trace's partial last block.
    parent: -1 for a first block, always a smaller id than the node's own. words: the block's token ids,
    or a ready-made trace's block id as two words (then `ready_made`, and there are no tokens).
    """

    block_size: int
    ready_made: bool
    encoder_fingerprint: str
    arrival: NDArray[np.int64]
    session: NDArray[np.int32]
    session_names: Sequence[str]
    space: NDArray[np.int32]
    spaces: Sequence[Space]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    leaf: NDArray[np.int32]
    partial: NDArray[np.bool_]
    parent: NDArray[np.int32]
    depth: NDArray[np.int32]
    node_space: NDArray[np.int32]
    words: NDArray[np.uint32]
    meta: pa.Table

    @property
    def requests(self) -> int:
        """How many requests."""
        return len(self.leaf)

    @property
    def distinct_blocks(self) -> int:
        """How many distinct blocks, a trace's partial ones included."""
        return len(self.parent)

    @property
    def sessions(self) -> int:
        """How many sessions have a request here."""
        return len(np.unique(self.session[self.session >= 0]))

    @property
    def space_names(self) -> list[str]:
        """Spaces for people: 'model' or 'model (tenant)'."""
        return [f"{model or '-'} ({tenant})" if tenant else model or "-" for model, tenant in self.spaces]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Blocks of each prompt, int64 [r]."""
        return np.append(self.depth, np.int32(-1))[self.leaf].astype(np.int64) + 1

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Request i's blocks are nodes[offsets[i] : offsets[i + 1]], int64 [r + 1]."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])

    @cached_property
    def nodes(self) -> NDArray[np.int32]:
        """Every request's node ids, front to back, int32 [sum of lengths]."""
        out = np.empty(int(self.offsets[-1]), np.int32)
        _expand(self.leaf, self.parent, self.offsets, out)
        return out

    @cached_property
    def clock(self) -> NDArray[np.float64]:
        """Seconds since the first known arrival, float64 [r], never falling; ordinals without any times."""
        if not (self.arrival >= 0).any():
            return np.arange(self.requests, dtype=np.float64)
        first = int(self.arrival[self.arrival >= 0].min())
        return np.maximum.accumulate(np.where(self.arrival >= 0, (self.arrival - first) / 1e6, 0.0))

    @cached_property
    def hashes(self) -> NDArray[np.uint8]:
        """BlockHash of every node, uint8 [n, 16], chained from each space's root."""
        roots = [self._root(index) for index in range(len(self.spaces))]
        digests: list[BlockHash] = []
        for words, parent, space in zip(
            self.words, self.parent.tolist(), self.node_space.tolist(), strict=True
        ):
            digests.append(child_hash(roots[space] if parent < 0 else digests[parent], words))
        return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)

    def hash_of(self, node: int) -> BlockHash:
        """BlockHash of one node, from its own path only."""
        digest = self._root(int(self.node_space[node]))
        for ancestor in self.path_of(node):
            digest = child_hash(digest, self.words[ancestor])
        return digest

    def path_of(self, node: int) -> list[int]:
        """Node ids from the first block down to `node`."""
        path = []
        while node >= 0:
            path.append(node)
            node = int(self.parent[node])
        return path[::-1]

    def tokens_of(self, node: int) -> TokenIds:
        """Token ids of one block, uint32 [block_size]."""
        assert not self.ready_made, "a block-id trace has no tokens"
        block: TokenIds = self.words[node]
        return block

    def prefix_of(self, node: int) -> TokenIds:
        """Token ids of the whole prefix that ends with `node`."""
        assert not self.ready_made, "a block-id trace has no tokens"
        prefix: TokenIds = np.ravel(self.words[self.path_of(node)])
        return prefix

    def coarser(self, block_size: int) -> "Workload":
        """The same log cut into larger blocks, exactly. `block_size` is a multiple of the present one."""
        assert block_size % self.block_size == 0
        factor = block_size // self.block_size
        if factor == 1:
            return self
        ends = (self.depth + 1) % factor == 0
        if self.partial.any():
            ends[self.leaf[self.partial]] = False
        bases = np.flatnonzero(ends).astype(np.int32)
        renamed = np.append(np.where(ends, np.cumsum(ends) - 1, -1), -1).astype(np.int32)  # [-1] is -1
        width = self.words.shape[1]
        words = np.empty((len(bases), width * factor), np.uint32)
        above = bases
        for piece in range(factor - 1, -1, -1):
            words[:, piece * width : (piece + 1) * width] = self.words[above]
            above = self.parent[above]
        leaf = self.leaf.copy()
        for _ in range(factor):
            short = np.flatnonzero(~np.append(ends, True)[leaf])
            leaf[short] = self.parent[leaf[short]]
        return replace(
            self,
            block_size=block_size,
            leaf=renamed[leaf],
            partial=np.zeros_like(self.partial),
            parent=renamed[above],
            depth=((self.depth[bases] + 1) // factor - 1).astype(np.int32),
            node_space=self.node_space[bases],
            words=words,
        )

    def select(self, first: int, last: int) -> "Workload":
        """Requests [first, last) over the same trie."""
        cut = slice(first, last)
        return replace(
            self,
            arrival=self.arrival[cut],
            session=self.session[cut],
            space=self.space[cut],
            prompt_tokens=self.prompt_tokens[cut],
            output_tokens=self.output_tokens[cut],
            leaf=self.leaf[cut],
            partial=self.partial[cut],
            meta=self.meta.slice(first, last - first),
        )

    def _root(self, space: int) -> BlockHash:
        model, tenant = self.spaces[space]
        return namespace("kvtool.analysis", self.encoder_fingerprint, self.block_size, repr((model, tenant)))


class WorkloadBuilder:
    """Takes requests batch by batch, in any order; `finish` sorts them by arrival.

    block_size: base block for tokenized prompts; block-id traces bring their own.
    """

    def __init__(self, block_size: int, encoder_fingerprint: str, share_tenants: bool = False) -> None:
        self.block_size = block_size
        self.encoder_fingerprint = encoder_fingerprint
        self.share_tenants = share_tenants
        self.ready_made: bool | None = None
        self._trie = BlockTrie(block_size)
        self._sessions: dict[str, int] = {}
        self._spaces: dict[Space, int] = {}
        self._arrival, self._prompt, self._output = array("q"), array("q"), array("q")
        self._session, self._space, self._partial = array("i"), array("i"), array("b")
        self._leaves: list[NDArray[np.int32]] = []
        self._meta: list[pa.RecordBatch] = []

    def add(self, requests: Sequence[Request], tokens: Sequence[TokenIds] | None) -> None:
        """One batch. `tokens` are the prompts' ids, None for a batch of a block-id trace."""
        if not requests:
            return
        prompts, partial = self._prompts(requests, tokens)
        spaces = array("i")
        for request in requests:
            space = (request.model, None if self.share_tenants else request.tenant)
            spaces.append(self._spaces.setdefault(space, len(self._spaces)))
            self._arrival.append(-1 if request.arrival is None else request.arrival)
            self._output.append(-1 if request.output_tokens is None else request.output_tokens)
            self._session.append(
                -1
                if request.session is None
                else self._sessions.setdefault(request.session, len(self._sessions))
            )
        self._space.extend(spaces)
        self._partial.extend(partial)
        offsets = np.zeros(len(prompts) + 1, np.int64)
        np.cumsum([len(prompt) for prompt in prompts], out=offsets[1:])
        words = np.ascontiguousarray(np.concatenate(prompts), np.uint32)
        self._leaves.append(self._trie.insert(words, offsets, np.array(spaces, np.int32)))
        columns = (
            [request.id for request in requests],
            [request.source.file for request in requests],
            [request.source.row for request in requests],
        )
        self._meta.append(pa.record_batch([pa.array(column) for column in columns], schema=META))

    def add_trace(self, batch: TraceBatch) -> None:
        """One batch of a block-hash trace, as `add` takes its requests."""
        count = len(batch)
        self._take_trace(batch.block_size, batch.file, int(batch.rows[0]) if count else 1)
        offsets = batch.offsets * 2  # an id is two words
        words = batch.ids.astype("<i8", copy=False).view(np.uint32)
        models = batch.models or [None] * count
        tenants = batch.tenants if batch.tenants and not self.share_tenants else [None] * count
        spaces = array("i")
        for space in zip(models, tenants, strict=True):
            spaces.append(self._spaces.setdefault(space, len(self._spaces)))
        for session in batch.sessions or ():
            number = -1 if session is None else self._sessions.setdefault(session, len(self._sessions))
            self._session.append(number)
        if batch.sessions is None:
            self._session.frombytes(np.full(count, -1, np.int32).tobytes())
        for column, values in (
            (self._arrival, batch.arrival),
            (self._output, batch.output),
            (self._prompt, batch.tokens),
        ):
            column.frombytes(values.tobytes())
        whole = np.diff(batch.offsets) * batch.block_size
        self._partial.frombytes((whole > batch.tokens).astype(np.int8).tobytes())
        self._space.extend(spaces)
        self._leaves.append(self._trie.insert(words, offsets, np.array(spaces, np.int32)))
        rows = pa.array(batch.rows)
        files = pa.array([batch.file], pa.string()).take(pa.array(np.zeros(count, np.int64)))
        names = (
            pc.binary_join_element_wise(files, rows.cast(pa.string()), ":")
            if batch.names is None
            else pa.array(batch.names, pa.string())
        )
        self._meta.append(pa.record_batch([names, files, rows], schema=META))

    def finish(self) -> Workload:
        """The workload of all that was added."""
        arrival = np.array(self._arrival, np.int64)
        order = arrival_order(arrival)
        link = self._trie.link
        leaves = np.concatenate([np.empty(0, np.int32), *self._leaves])
        return Workload(
            block_size=self.block_size,
            ready_made=bool(self.ready_made),
            encoder_fingerprint=self.encoder_fingerprint,
            arrival=arrival[order],
            session=np.array(self._session, np.int32)[order],
            session_names=list(self._sessions),
            space=np.array(self._space, np.int32)[order],
            spaces=list(self._spaces),
            prompt_tokens=np.array(self._prompt, np.int64)[order],
            output_tokens=np.array(self._output, np.int64)[order],
            leaf=leaves[order],
            partial=np.array(self._partial, np.bool_)[order],
            parent=np.maximum(link, -1),
            depth=self._trie.depth,
            node_space=_spread_spaces(link),
            words=self._trie.words,
            meta=pa.Table.from_batches(self._meta, META).take(order),
        )

    def _take(self, ready_made: bool, file: str, row: int) -> None:
        """Refuse to mix prompts that are given as block ids with others."""
        if self.ready_made is None:
            self.ready_made = ready_made
        if self.ready_made != ready_made:
            raise KvtoolError(
                f"{file}, row {row}: block ids and token prompts in one run",
                "analyze block-hash traces on their own",
            )

    def _take_trace(self, block_size: int, file: str, row: int) -> None:
        """The first trace sets the block size, the others must have the same."""
        if self.ready_made is None:
            self.block_size = block_size
            self._trie = BlockTrie(2)
        self._take(True, file, row)
        if block_size != self.block_size:
            raise KvtoolError(
                f"{file}, row {row}: blocks of {block_size} tokens after blocks of {self.block_size}",
                "analyze traces of one block size at a time",
            )

    def _prompts(
        self, requests: Sequence[Request], tokens: Sequence[TokenIds] | None
    ) -> tuple[Sequence[NDArray[np.uint32]], Iterable[int]]:
        """Each prompt's words, and whether its last block is partial; counts prompt tokens on the way."""
        first = requests[0]
        if first.block_ids is not None:
            self._take_trace(first.block_ids.block_size, first.source.file, first.source.row)
        else:
            self._take(False, first.source.file, first.source.row)
        if tokens is not None:
            self._prompt.extend(len(prompt) for prompt in tokens)
            return tokens, bytes(len(tokens))
        prompts, partial = [], []
        for request in requests:
            ready = request.block_ids
            assert ready is not None
            if ready.block_size != self.block_size:
                raise KvtoolError(
                    f"{request.source.file}, row {request.source.row}: blocks of {ready.block_size} tokens "
                    f"after blocks of {self.block_size}",
                    "analyze traces of one block size at a time",
                )
            ids = ready.ids[: -(-ready.tokens // self.block_size)]
            self._prompt.append(ready.tokens)
            partial.append(int(len(ids) * self.block_size > ready.tokens))
            prompts.append(ids.astype("<i8").view(np.uint32))
        return prompts, partial


def arrival_order(arrival: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices that sort requests by arrival (µs, -1 unknown): a request without a time keeps its place
    behind the one read before it."""
    if len(arrival) == 0:
        return np.empty(0, np.int64)
    known = np.maximum.accumulate(np.where(arrival >= 0, np.arange(len(arrival)), 0))
    return np.argsort(arrival[known], kind="stable")


def build_workload(
    requests: Iterable[Request],
    encoder: PromptEncoder | None,
    block_size: int = 8,
    share_tenants: bool = False,
) -> Workload:
    """A workload from a stream of requests. Only block-id traces can do without an encoder."""
    builder = WorkloadBuilder(block_size, encoder.fingerprint if encoder else "", share_tenants)
    for batch in batches(requests):
        for part in by_kind(batch):
            builder.add(part, encode(part, encoder))
    return builder.finish()


def by_kind(batch: Sequence[Request]) -> Iterable[Sequence[Request]]:
    """A batch, split where prompts given as block ids and others meet (which `add` refuses)."""
    ready = [request for request in batch if request.block_ids is not None]
    other = [request for request in batch if request.block_ids is None]
    return [part for part in (other, ready) if part]


def encode(batch: Sequence[Request], encoder: PromptEncoder | None) -> list[TokenIds] | None:
    """Token ids of a batch of one kind; None for ready-made block ids."""
    if batch[0].block_ids is not None:
        return None
    assert encoder is not None, "prompts in text need an encoder"
    return encoder.encode(batch)


@njit(types.void(types.int32[::1], types.int32[::1], types.int64[::1], types.int32[::1]), cache=True)
def _expand(leaf: Any, parent: Any, offsets: Any, out: Any) -> None:
    for request in range(leaf.size):
        node = leaf[request]
        for at in range(offsets[request + 1] - 1, offsets[request] - 1, -1):
            out[at] = node
            node = parent[node]


@njit(types.int32[::1](types.int32[::1]), cache=True)
def _spread_spaces(link: Any) -> Any:
    """Space of every node, from the roots down: parents come first."""
    space = np.empty(link.size, np.int32)
    for node in range(link.size):
        space[node] = -1 - link[node] if link[node] < 0 else space[link[node]]
    return space
