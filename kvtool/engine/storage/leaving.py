"""Encoded blocks on their way out of a device: one copy for many, beside the compute, awaited when used."""

import torch
from torch import Tensor

from kvtool.engine.storage.lanes import Lanes, lanes_of


class Leaving:
    """uint8 [n, bytes] that will be in the host's memory; on a CPU it is there. lanes: the device's."""

    def __init__(self, data: Tensor, lanes: Lanes | None = None) -> None:
        lanes = lanes or lanes_of(data.device)
        self._host = torch.empty(data.shape, dtype=data.dtype, pin_memory=data.device.type == "cuda")

        def copy() -> None:
            self._host.copy_(data, non_blocking=True)

        self._done = lanes.out.run(copy, [lanes.mark()], [data])

    def row(self, number: int) -> bytes:
        """One block's bytes, once they are here."""
        self._done.synchronize()
        data: bytes = self._host[number].numpy().tobytes()
        return data
