"""Requests -> runs: prompts are encoded in batches, inserted in the trie, sorted by arrival."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numba import types
from numpy.typing import NDArray

from kvtool.analysis.runs import Runs
from kvtool.analysis.trie import NO_RUN, BlockTrie
from kvtool.analysis.workload import META, Space, Workload
from kvtool.blocks import TokenIds
from kvtool.compiling import njit
from kvtool.errors import KvtoolError
from kvtool.logs.traces import TraceBatch
from kvtool.requests import Request
from kvtool.tokens import PromptEncoder, batches


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
        self._leaf = array("i")
        self._files: dict[str, int] = {}
        self._file, self._row = array("i"), array("q")
        self._ids: list[pa.Array] = []

    def add(self, requests: Sequence[Request], tokens: Sequence[TokenIds] | None) -> None:
        """One batch. `tokens` are the prompts' ids, None for a batch of a block-id trace."""
        if not requests:
            return
        prompts, partial = self._prompts(requests, tokens)
        spaces = array("i")
        ids: list[str | None] = []
        for request in requests:
            source = request.source
            self._file.append(self._files.setdefault(source.file, len(self._files)))
            self._row.append(source.row)
            ids.append(None if request.id == f"{source.file}:{source.row}" else request.id)
            spaces.append(self._space_of(request.model, request.tenant))
            self._arrival.append(-1 if request.arrival is None else request.arrival)
            self._output.append(-1 if request.output_tokens is None else request.output_tokens)
            self._session.append(
                -1
                if request.session is None
                else self._sessions.setdefault(request.session, len(self._sessions))
            )
        self._space.extend(spaces)
        self._partial.frombytes(bytes(partial))
        offsets = np.zeros(len(prompts) + 1, np.int64)
        np.cumsum([len(prompt) for prompt in prompts], out=offsets[1:])
        words = np.ascontiguousarray(np.concatenate(prompts), np.uint32)
        cut = np.frombuffer(partial, np.bool_)
        self._leaf.frombytes(self._trie.insert(words, offsets, np.array(spaces, np.int32), cut).tobytes())
        self._ids.append(pa.array(ids, pa.large_string()))

    def add_trace(self, batch: TraceBatch) -> None:
        """One batch of a block-hash trace, as `add` takes its requests."""
        count = len(batch)
        self._take_trace(batch.block_size, batch.file, int(batch.rows[0]) if count else 1)
        offsets = batch.offsets * 2  # an id is two words
        words = batch.ids.astype("<i8", copy=False).view(np.uint32)
        spaces = np.full(count, self._space_of(None, None), np.int32)
        if batch.models or batch.tenants:
            models, tenants = batch.models or [None] * count, batch.tenants or [None] * count
            pairs = zip(models, tenants, strict=True)
            spaces = np.array([self._space_of(model, tenant) for model, tenant in pairs], np.int32)
        for session in batch.sessions or ():
            number = -1 if session is None else self._sessions.setdefault(session, len(self._sessions))
            self._session.append(number)
        if batch.sessions is None:
            self._session.frombytes(np.full(count, -1, np.int32).tobytes())
        for column, values in (
            (self._arrival, batch.arrival),
            (self._output, batch.output),
            (self._prompt, batch.tokens),
            (self._row, batch.rows),
            (self._space, spaces),
        ):
            column.frombytes(values.tobytes())
        partial = np.diff(batch.offsets) * batch.block_size > batch.tokens
        self._partial.frombytes(partial.tobytes())
        file = self._files.setdefault(batch.file, len(self._files))
        self._file.frombytes(np.full(count, file, np.int32).tobytes())
        self._leaf.frombytes(self._trie.insert(words, offsets, spaces, partial).tobytes())
        ids = pa.nulls(count, pa.large_string())
        self._ids.append(ids if batch.names is None else pa.array(batch.names, pa.large_string()))

    def finish(self) -> Runs:
        """The log of all that was added; the builder is used up."""
        arrival = _taken(self._arrival, np.int64)
        order = arrival_order(arrival)
        columns = {
            "session": _taken(self._session, np.int32)[order],
            "space": _taken(self._space, np.int32)[order],
            "prompt_tokens": _taken(self._prompt, np.int64)[order],
            "output_tokens": _taken(self._output, np.int64)[order],
            "partial": _taken(self._partial, np.bool_)[order],
            "meta": self._meta().take(order),
        }
        return runs_in_order(
            self._trie,
            _taken(self._leaf, np.int32)[order],
            block_size=self.block_size,
            ready_made=bool(self.ready_made),
            encoder_fingerprint=self.encoder_fingerprint,
            arrival=arrival[order],
            session_names=list(self._sessions),
            spaces=list(self._spaces),
            **columns,
        )

    def _space_of(self, model: str | None, tenant: str | None) -> int:
        return self._spaces.setdefault((model, None if self.share_tenants else tenant), len(self._spaces))

    def _meta(self) -> pa.Table:
        files = pa.DictionaryArray.from_arrays(
            _taken(self._file, np.int32), pa.array(list(self._files), pa.string())
        )
        ids = pa.chunked_array(self._ids, pa.large_string()).combine_chunks()
        self._ids.clear()
        return pa.table([ids, files, _taken(self._row, np.int64)], schema=META)

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
    ) -> tuple[Sequence[NDArray[np.uint32]], bytearray]:
        """Each prompt's words, and whether its last block is partial; counts prompt tokens on the way."""
        first = requests[0]
        if first.block_ids is not None:
            self._take_trace(first.block_ids.block_size, first.source.file, first.source.row)
        else:
            self._take(False, first.source.file, first.source.row)
        if tokens is not None:
            self._prompt.extend(len(prompt) for prompt in tokens)
            return tokens, bytearray(len(tokens))
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
        return prompts, bytearray(partial)


def arrival_order(arrival: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices that sort requests by arrival (µs, -1 unknown): a request without a time keeps its place
    behind the one read before it."""
    if len(arrival) == 0:
        return np.empty(0, np.int64)
    known = np.maximum.accumulate(np.where(arrival >= 0, np.arange(len(arrival)), 0))
    return np.argsort(arrival[known], kind="stable")


def runs_in_order(trie: BlockTrie, ends: NDArray[np.int32], **columns: Any) -> Runs:
    """Runs over a trie, renumbered by their first blocks: in order of insertion, parents first.

    ends: the trie's run that each prompt ends with, int32 [r]; columns: the other fields of Runs.
    """
    order = np.argsort(trie.first)
    renamed = np.full(len(order) + 1, NO_RUN, np.int32)
    renamed[order] = np.arange(len(order), dtype=np.int32)
    link = trie.link[order]
    parent = renamed[np.maximum(link, -1)]
    return Runs(
        **columns,
        leaf=renamed[ends],
        parent=parent,
        depth=trie.depth[order],
        node_space=spread_spaces(np.where(link < 0, link, parent)),
        first=trie.first[order],
        stored=trie.words,
    )


def build_workload(
    requests: Iterable[Request],
    encoder: PromptEncoder | None,
    block_size: int = 8,
    share_tenants: bool = False,
) -> Workload:
    """The workload of a stream of requests, block by block: see `build_runs`."""
    return build_runs(requests, encoder, block_size, share_tenants).unfolded()


def build_runs(
    requests: Iterable[Request],
    encoder: PromptEncoder | None,
    block_size: int = 8,
    share_tenants: bool = False,
) -> Runs:
    """A stream of requests as runs. Only block-id traces can do without an encoder."""
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


def _taken(column: "array[int]", kind: Any) -> Any:
    """The column as an array of its own; it is emptied, so that a long log's columns do not stand twice."""
    taken = np.frombuffer(column.tobytes(), kind)
    del column[:]
    return taken


@njit(types.int32[::1](types.int32[::1]), cache=True)
def spread_spaces(link: Any) -> Any:
    """Space of every node, from the roots down: parents come first."""
    space = np.empty(link.size, np.int32)
    for node in range(link.size):
        space[node] = -1 - link[node] if link[node] < 0 else space[link[node]]
    return space
