"""Paged attention of a layer on CPU cores: torch's workers run the compiled kernel over a batch's tasks."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.cpu import kernel, team, vector
from kvtool.engine.compute.cpu.tasks import Tasks, plan, runs, shares
from kvtool.engine.compute.reads import Span

PARTS = 1 << 24
"""float32 of parts that wait to be merged (64 MB): what needs more is computed in waves."""


class Cores:
    """Scratch memory of one model's attention, kept from step to step, and the workers that use it."""

    def __init__(self, lent: team.Team) -> None:
        self.team = lent
        self.workers = torch.get_num_threads()
        self._kept = {name: np.empty(0, np.float32) for name in ("parts", "tiles")}

    def scratch(self, name: str, size: int) -> NDArray[np.float32]:
        """At least `size` float32; the caller keeps them, as more of the same name replace them here."""
        if self._kept[name].size < size:
            self._kept[name] = np.empty(size, np.float32)
        return self._kept[name]


def cores_for(arena: Arena) -> Cores | None:
    """None where the kernel cannot do it: 16-bit or quantized blocks, odd shapes of heads, no workers to
    lend."""
    alike = all(
        keys.shape == values.shape and keys.shape[3] % vector.MANY == 0
        for keys, values in zip(arena.keys, arena.values, strict=True)
    )
    plain = arena.device.type == "cpu" and arena.dtype == torch.float32 and arena.in_place
    lent = team.torch_team() if alike and plain else None
    return None if lent is None else Cores(lent)


class CoresBatch:
    """A packed batch, in waves; their tasks are planned once for all layers that are alike.

    writes: int64 [T], where the new tokens go, as in a `PagedStep`.
    """

    def __init__(
        self, cores: Cores, spans: Sequence[Span], block_size: int, writes: NDArray[np.int64]
    ) -> None:
        self._cores = cores
        self._spans = spans
        self._block_size = block_size
        self._writes = writes
        self._plans: dict[tuple[int, int, int, int | None], list[tuple[int, NDArray[np.int64]]]] = {}
        self._addressed: list[object] = []
        """What the plans' addresses lead to."""

    def attend(
        self,
        arena_keys: Tensor,
        arena_values: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int | None,
    ) -> tuple[Tensor, Tensor]:
        """Stores a layer's new keys and values; (output [T, H, D], log-sum-exp [T, H]) of its rows.

        arena_keys, arena_values: [slots, block_size, Hkv, D]. query [H, T, D], key, value [Hkv, T, D].
        float32.
        """
        query, key, value = (
            each if each.stride(2) == 1 else each.contiguous() for each in (query, key, value)
        )
        heads, tokens, width = query.shape
        out, sums = query.new_empty(tokens, heads, width), query.new_empty(tokens, heads)
        scales = np.array([scale], np.float32)
        for row, given in self._waves(heads, key.shape[0], width, window):
            given[kernel.QUERY : kernel.WRITES] = (
                *(query.data_ptr() + 4 * row * query.stride(1), query.stride(0), query.stride(1)),
                *(key.data_ptr() + 4 * row * key.stride(1), key.stride(0), key.stride(1)),
                *(value.data_ptr() + 4 * row * value.stride(1), value.stride(0), value.stride(1)),
                *(arena_keys.data_ptr(), arena_values.data_ptr()),
                *(out.data_ptr() + 4 * row * heads * width, sums.data_ptr() + 4 * row * heads),
            )
            given[kernel.SCALE] = scales.ctypes.data
            self._cores.team.run(kernel.work(), given.ctypes.data, self._cores.workers)
        return out, sums

    def _waves(
        self, heads: int, kv_heads: int, width: int, window: int | None
    ) -> list[tuple[int, NDArray[np.int64]]]:
        """First row and kernel's arguments, but for a layer's tensors, of each wave: some key-value heads of
        all rows, whose keys are then read once; where one is too much, of some rows."""
        alike = (heads, kv_heads, width, window)
        if alike not in self._plans:
            group, size = heads // kv_heads, width + 2
            found: list[tuple[int, Tasks, int, int]] = []
            for row, spans in runs(self._spans, PARTS // (group * size), window):
                tasks = plan(spans, self._block_size, group, window)
                some = min(max(PARTS // (tasks.parts * size), 1), kv_heads)
                found += ((row, tasks, head, min(head + some, kv_heads)) for head in range(0, kv_heads, some))
            needed = max(tasks.parts * (last - head) for _, tasks, head, last in found)
            parts = self._cores.scratch("parts", needed * size)
            self._plans[alike] = [(each[0], self._given(*each, parts, alike)) for each in found]
        return self._plans[alike]

    def _given(
        self, row: int, tasks: Tasks, head: int, last: int,
        parts: NDArray[np.float32], alike: tuple[int, int, int, int | None],
    ) -> NDArray[np.int64]:  # fmt: skip
        heads, kv_heads, width, window = alike
        cores, writes = self._cores, self._writes[row : row + len(tasks.positions)]
        dealt = shares(tasks.costs, last - head, cores.workers)
        given = np.zeros(kernel.FIELDS, np.int64)
        size = kernel.scratch_size(width)
        tiles = cores.scratch("tiles", cores.workers * size)
        for field, number in (
            (kernel.WORKERS, cores.workers),
            (kernel.NUMBER, cores.team.number),
            (kernel.CREW, cores.team.crew),
            (kernel.BARRIER, cores.team.barrier),
            (kernel.TOKENS, len(writes)),
            (kernel.HEADS, heads),
            (kernel.KV_HEADS, kv_heads),
            (kernel.HEAD_FIRST, head),
            (kernel.HEAD_LAST, last),
            (kernel.WIDTH, width),
            (kernel.BLOCK, self._block_size),
            (kernel.WINDOW, window or 0),
            (kernel.TASK_COUNT, len(tasks.tasks)),
            (kernel.PART_COUNT, tasks.parts),
            (kernel.PARTS, parts.ctypes.data),
            (kernel.SCRATCH, tiles.ctypes.data),
            (kernel.SCRATCH_SIZE, size),
        ):
            given[field] = number
        for field, array in (
            (kernel.WRITES, writes),
            (kernel.TASKS, tasks.tasks),
            (kernel.SHARES, dealt),
            (kernel.ROWS, tasks.rows),
            (kernel.POSITIONS, tasks.positions),
            (kernel.TABLES, tasks.tables),
            (kernel.LANE_PARTS, tasks.lane_parts),
            (kernel.LANE_STARTS, tasks.lane_starts),
        ):
            assert array.dtype == np.int64 and array.flags.c_contiguous
            given[field] = array.ctypes.data
        self._addressed += (tasks, dealt, parts, tiles)
        return given
