"""Decodes as CUDA graphs: one launch instead of the thousands that a model's layers make from Python.

A graph is captured for a padded batch size and a bucket of lengths, when a batch first needs it, and
reads its inputs from buffers of its own. Rows that only fill up the batch repeat the last real row:
they write the same values to the same place. Without CUDA the same buffers go through a plain forward.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvtool.engine.compute.kernels.tables import Tiles, splits

SIZES = (1, 2, 4, 8, *range(16, 257, 8))
"""Padded batch sizes; larger batches run as plain forwards."""

SHORTEST = 1024
"""Tokens of the first bucket of lengths; each further one is twice as long."""

WARM_UPS = 2
"""Plain forwards before a capture: kernels are compiled and workspaces allocated in them."""


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """One token of each of n sequences.

    inputs: int64 [4, n] on the CPU: token ids; positions; writes, slot * block_size + offset of their keys;
    and which of the `previous` tokens (int64 on the device) stands for the id, -1 for none.
    tables: block tables, each covering its sequence's position.
    """

    inputs: Tensor
    tables: Sequence[Sequence[int]]
    previous: Tensor | None = None


@dataclass(frozen=True, slots=True)
class DecodeTiles:
    """The kernels' plan in a graph: the same tiles for every layer, in static buffers."""

    fixed: Tiles

    def tiles(self, groups: int, kv_heads: int, key_bytes: int) -> list[Tiles]:
        """One tile a row."""
        return [self.fixed]


def followed(tokens: Tensor, follows: Tensor, previous: Tensor) -> Tensor:
    """`tokens` [n], where `follows` is not negative replaced by that one of `previous`. On the device."""
    return torch.where(follows < 0, tokens, previous[follows.clamp(min=0)])


Forward = Callable[[Tensor, Tensor, Tensor, DecodeTiles], Tensor]
"""(tokens [n], positions [n], writes [n], tiles) -> logits [n, vocab] of any dtype, all on the device."""


class DecodeGraphs:
    """Graphs of one model over one arena, made when first needed."""

    def __init__(
        self,
        forward: Forward,
        device: torch.device,
        block_size: int,
        kv_heads: int,
        most_tokens: int,
        at_once: int,
    ) -> None:
        """kv_heads: fewest of any layer. most_tokens: the longest sequence. at_once: programs of decodes that
        the device runs at a time."""
        self._forward = forward
        self._device = device
        self._block_size = block_size
        self._kv_heads = kv_heads
        self._most_tokens = most_tokens
        self._at_once = at_once
        self._graphs: dict[tuple[int, int], _Graph] = {}
        self._memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._logits: dict[int, Tensor] = {}

    def run(self, batch: DecodeBatch) -> Tensor:
        """Logits [n, vocab] float32 on the device, valid until the next run.

        Graphs of one size have one place for them: that of a graph of its own would be held for good.
        """
        rows = batch.inputs.shape[1]
        size = next(size for size in SIZES if size >= rows)
        longest = int(batch.inputs[1].max()) + 1
        bucket = SHORTEST
        while bucket < longest:
            bucket *= 2
        bucket = min(bucket, -(-self._most_tokens // self._block_size) * self._block_size)
        if (size, bucket) not in self._graphs:
            self._graphs[size, bucket] = self._make(size, bucket)
        return self._graphs[size, bucket].run(batch, self._logits)[:rows].float()

    def _make(self, size: int, bucket: int) -> "_Graph":
        pieces = splits(size * self._kv_heads, bucket, self._at_once)
        return _Graph(self._forward, self._device, size, bucket, self._block_size, pieces, self._memory)


class _Graph:
    """One captured forward and its buffers."""

    def __init__(
        self,
        forward: Forward,
        device: torch.device,
        size: int,
        bucket: int,
        block_size: int,
        pieces: int,
        memory: Any,
    ) -> None:
        """memory: graphs run one after the other, so what they compute with is shared by all."""
        blocks = bucket // block_size
        pinned = device.type == "cuda"
        self._host_inputs = torch.zeros(4, size, dtype=torch.int64, pin_memory=pinned)
        self._host_tiles = torch.zeros(size, 4, dtype=torch.int32, pin_memory=pinned)
        self._host_tables = torch.zeros(size, blocks, dtype=torch.int32, pin_memory=pinned)
        self._inputs = torch.zeros_like(self._host_inputs, device=device)
        self._tiles = torch.zeros_like(self._host_tiles, device=device)
        self._tables = torch.zeros_like(self._host_tables, device=device)
        rows = torch.arange(size, device=device)
        self._plan = DecodeTiles(Tiles(self._tiles, self._tables, 1, pieces, rows))
        self._forward = forward
        self._device = device
        self._block_size = block_size
        self._memory = memory
        self._graph: torch.cuda.CUDAGraph | None = None
        self._copied = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

    def run(self, batch: DecodeBatch, outputs: dict[int, Tensor]) -> Tensor:
        """outputs: where graphs of each size leave their logits."""
        self._fill(batch)
        if self._device.type != "cuda":
            return self._compute()
        if self._graph is None:
            self._graph = self._captured(outputs)
        self._graph.replay()
        return outputs[len(self._tiles)]

    def _fill(self, batch: DecodeBatch) -> None:
        """Copy a batch into the buffers; rows beyond it repeat its last one."""
        if self._copied is not None:
            # The last copies read the pinned buffers: they stood before the step that may be running now.
            self._copied.synchronize()
        rows = batch.inputs.shape[1]
        self._host_inputs[:, :rows] = batch.inputs
        self._host_inputs[:, rows:] = batch.inputs[:, -1:]
        self._host_tables.zero_()
        used = (batch.inputs[1] // self._block_size + 1).tolist()
        for row, (table, blocks) in enumerate(zip(batch.tables, used, strict=True)):
            self._host_tables[row, :blocks] = torch.tensor(table[:blocks], dtype=torch.int32)
        self._host_tables[rows:] = self._host_tables[rows - 1]
        # A tile: sequence, row, one token, its position.
        size = len(self._host_tiles)
        self._host_tiles[:, 0] = self._host_tiles[:, 1] = torch.arange(size)
        self._host_tiles[:, 2] = 1
        self._host_tiles[:, 3] = self._host_inputs[1]
        self._inputs.copy_(self._host_inputs, non_blocking=True)
        self._tiles.copy_(self._host_tiles, non_blocking=True)
        self._tables.copy_(self._host_tables, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        if batch.previous is not None:
            self._inputs[0] = followed(self._inputs[0], self._inputs[3], batch.previous)

    def _compute(self) -> Tensor:
        tokens, positions, writes, _ = self._inputs
        return self._forward(tokens, positions, writes, self._plan)

    def _captured(self, outputs: dict[int, Tensor]) -> torch.cuda.CUDAGraph:
        """The buffers hold a real batch, so the warm-ups compute and store what the replay will."""
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._compute()
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads go on reading blocks into page-locked memory meanwhile: they must not break it off.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            logits = self._compute()
            with torch.inference_mode():
                outputs.setdefault(len(self._tiles), logits).copy_(logits)
        return graph
