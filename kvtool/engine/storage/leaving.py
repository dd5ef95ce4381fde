"""Encoded blocks on their way out of a device: one copy for many, beside the compute, awaited when used.

Only then is it known which of them could not be coded.
"""

import torch
from torch import Tensor

from kvtool.engine.storage.codec import BlockCodec, compressed
from kvtool.engine.storage.faults import refuse
from kvtool.engine.storage.lanes import Lanes, lanes_of
from kvtool.engine.storage.layout import BlockShape


class Leaving:
    """Blocks that will be in the host's memory; on a CPU they are there.

    data: uint8 [n, bytes], faults: uint8 [n] or None, as `encode_blocks` gives them. lanes: the device's.
    """

    def __init__(
        self,
        codec: BlockCodec,
        shape: BlockShape,
        data: Tensor,
        faults: Tensor | None,
        lanes: Lanes | None = None,
    ) -> None:
        self._codec = codec
        self._shape = shape
        lanes = lanes or lanes_of(data.device)
        there = [data] if faults is None else [data, faults]
        self._here = [torch.empty(each.shape, dtype=each.dtype, pin_memory=each.is_cuda) for each in there]

        def copy() -> None:
            for here, each in zip(self._here, there, strict=True):
                here.copy_(each, non_blocking=True)

        self._done = lanes.out.run(copy, [lanes.mark()], there)

    def row(self, number: int) -> bytes:
        """One block as it is stored, once it is here. KvtoolError if it could not be coded."""
        self._done.synchronize()
        data, *faults = self._here
        for each in faults:
            refuse(int(each[number]), self._codec.name, self._shape.dtype)
        return compressed(self._codec, self._shape, data[number].numpy().tobytes())
