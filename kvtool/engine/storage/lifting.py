"""Raw blocks in host memory on their way up: one launch a layer, an event behind each."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.arrivals import Event
from kvtool.engine.compute.device import upload
from kvtool.engine.storage.lanes import Lanes
from kvtool.engine.storage.layout import BlockShape


def lift_layers(
    device: Arena,
    shape: BlockShape,
    memory: Tensor,
    sources: Sequence[int],
    targets: Sequence[int],
    lanes: Lanes,
    after: Sequence[Event],
) -> list[Event]:
    """Copy rows `sources` of `memory` [rows, elements], blocks as the codec `raw` stores them, to slots
    `targets`, behind `after`. What the device does next with these slots waits layer by layer.

    Returns when each layer will be there.
    """
    index: list[Tensor] = []

    def prepare() -> None:
        both = torch.from_numpy(np.array([sources, targets], np.int64))
        index.extend(upload(both, device.device))

    lanes.back.run(prepare, after)
    layers = []
    for number, starts in enumerate(_starts(shape)):

        def lift(number: int = number, starts: tuple[int, int] = starts) -> None:
            rows, places = index
            device.lift(number, memory, rows, starts, places)

        layers.append(lanes.back.run(lift))
    device.arrivals.add(targets, layers)
    return layers


def _starts(shape: BlockShape) -> Iterator[tuple[int, int]]:
    """Where each layer's keys and values begin in a block: keys of all layers of a shape, then values."""
    at = 0
    for group in shape.groups:
        tokens = shape.block_size * group.kv_heads
        values = at + group.layers * tokens * group.key_dim
        for layer in range(group.layers):
            yield at + layer * tokens * group.key_dim, values + layer * tokens * group.value_dim
        at += group.elements(shape.block_size)
