"""One packed forward for any mix of prefill chunks and decodes: the only way a model is run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvtool.blocks import TokenIds
from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.arrivals import Arrival
from kvtool.engine.compute.attention import PagedStep
from kvtool.engine.compute.cpu.attend import CoresBatch, cores_for
from kvtool.engine.compute.device import on, upload
from kvtool.engine.compute.graphs import SIZES, DecodeBatch, DecodeGraphs, followed
from kvtool.engine.compute.kernels.tables import TilePlan, Tiling, programs_at_once
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.packed import padded
from kvtool.engine.compute.reads import ReadPlan, Span


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence to compute: a piece of its prompt, or the last sampled token.

    tokens: uint32 [t], t >= 1. start: position of the first one; positions [0, start) are in the arena.
    slots: the sequence's block table, covering [0, start + t). Blocks before `start` are only read and
    may be shared. want_logits: how many of the last tokens' logits to return; True is the last one's.
    follows: the chunk's only token is this one of those that the step before has chosen; `tokens` is a
    placeholder, for the host does not know it yet.
    """

    tokens: TokenIds
    start: int
    slots: Sequence[int]
    want_logits: int = False
    follows: int | None = None


class Runner:
    """Runs a model over its arena. Not thread-safe: one step at a time."""

    def __init__(self, model: Model, arena: Arena, kernels: bool | None = None) -> None:
        """`kernels`: attend by the Triton kernels; by default where the arena is on a GPU."""
        self.model = model
        self.arena = arena
        self._windows = tuple(layer.window for layer in model.config.layers)
        self._kernels = arena.device.type == "cuda" if kernels is None else kernels
        self._at_once = programs_at_once(arena.device, not arena.in_place)
        self._cores = None if self._kernels else cores_for(arena)
        self._graphs = DecodeGraphs(
            self._forward_all,
            arena.device,
            arena.block_size,
            min(layer.kv_heads for layer in model.config.layers),
            min(model.config.max_positions, arena.slots * arena.block_size),
            self._at_once,
        )

    def step(self, batch: Sequence[Chunk], previous: Tensor | None = None) -> Tensor:
        """Compute all chunks, filling their slots. Logits [n_wanted, vocab], float32, in batch order.

        No two chunks may write to the same block; a chunk may read what an earlier step wrote. On a GPU
        the logits are valid until the next step, and this returns before they are computed.
        previous: int64 [n] on the device, the tokens that chunks may follow.
        """
        assert batch, "an empty step"
        with on(self.arena.device):
            return self._step(batch, previous)

    def _step(self, batch: Sequence[Chunk], previous: Tensor | None) -> Tensor:
        arrivals = self.arena.arrivals.of(slot for chunk in batch for slot in chunk.slots)
        spans, wanted = self._pack(batch)
        inputs = torch.from_numpy(self._inputs(batch, spans))
        assert inputs[1].max() < self.model.config.max_positions, "beyond the model's last position"
        if self._kernels and inputs.shape[1] == len(batch) == len(wanted) <= SIZES[-1]:
            for arrival in arrivals:  # a graph's layers cannot wait one by one
                arrival.layers[-1].wait()
            return self._graphs.run(DecodeBatch(inputs, [span.slots for span in spans], previous))
        device = self.arena.device
        plan: ReadPlan | Tiling
        cores = None
        if self._kernels:
            plan = TilePlan(spans, device, self._at_once)
        else:
            plan = ReadPlan(spans, self.arena.block_size, device, self.arena.dtype)
            if self._cores is not None:
                cores = CoresBatch(self._cores, spans, self.arena.block_size, inputs[2].numpy())
        tokens, positions, writes, follows = upload(inputs, device)
        if previous is not None:
            tokens = followed(tokens, follows, previous)
        if not self._kernels and cores is None:
            tokens, positions = _filled_up(tokens), _filled_up(positions)
        rows = upload(torch.tensor(wanted, dtype=torch.long), device)
        logits = self._forward(tokens, positions, writes, plan, rows, arrivals, cores).float()
        assert logits.shape[0] == len(wanted)
        return logits

    def _forward_all(self, tokens: Tensor, positions: Tensor, writes: Tensor, plan: Tiling) -> Tensor:
        return self._forward(tokens, positions, writes, plan, 0)

    def _forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        writes: Tensor,
        plan: ReadPlan | Tiling,
        wanted: Tensor | int,
        arrivals: Sequence[Arrival] = (),
        cores: CoresBatch | None = None,
    ) -> Tensor:
        """Logits [wanted, vocab] in the model's dtype, of rows `wanted` int64 [wanted]; of all if it is 0."""
        with torch.inference_mode():
            output = self.model.module(
                input_ids=tokens[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=wanted,
                kvtool=PagedStep(self.arena, writes, plan, self._windows, arrivals, cores),
            )
            logits: Tensor = output.logits[0]
        return logits

    def _pack(self, batch: Sequence[Chunk]) -> tuple[list[Span], list[int]]:
        """The chunks' places in the packed batch, and the rows whose logits are wanted."""
        spans: list[Span] = []
        wanted: list[int] = []
        first = 0
        for chunk in batch:
            last = first + len(chunk.tokens)
            assert last > first, "a chunk without tokens"
            assert 0 <= int(chunk.want_logits) <= last - first
            span = Span(first, last, chunk.start, list(chunk.slots))
            assert len(span.slots) * self.arena.block_size >= span.end, "the block table is too short"
            spans.append(span)
            wanted.extend(range(last - int(chunk.want_logits), last))
            first = last
        return self.arena.begin(spans), wanted

    def _inputs(self, batch: Sequence[Chunk], spans: Sequence[Span]) -> NDArray[np.int64]:
        """Tokens, positions, writes and follows (-1 for none) of every row, int64 [4, T]."""
        tokens = np.concatenate([chunk.tokens for chunk in batch])
        inputs = np.full((4, len(tokens)), -1, np.int64)
        inputs[0] = tokens
        inputs[1] = np.concatenate([np.arange(span.start, span.end) for span in spans])
        inputs[2] = self._writes(spans)
        for chunk, span in zip(batch, spans, strict=True):
            if chunk.follows is not None:
                assert len(chunk.tokens) == 1, "only one token can follow"
                inputs[3, span.first] = chunk.follows
        return inputs

    def _writes(self, spans: Sequence[Span]) -> NDArray[np.int64]:
        """Token index in the arena of every row, int64 [T]."""
        size = self.arena.block_size
        found = []
        for span in spans:
            positions = np.arange(span.start, span.end)
            first = span.start // size
            table = np.asarray(span.slots[first : -(-span.end // size)], dtype=np.int64)
            found.append(table[positions // size - first] * size + positions % size)
        return np.concatenate(found)


def _filled_up(rows: Tensor) -> Tensor:
    """The last row repeated, so that the model sees few numbers of rows."""
    return torch.cat([rows, rows[-1:].expand(padded(len(rows)) - len(rows))])
