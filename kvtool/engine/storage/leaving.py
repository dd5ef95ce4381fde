"""Encoded blocks on their way out of a device: one copy for many, beside the compute, awaited when used."""

import torch
from torch import Tensor

_STREAMS: dict[torch.device, torch.cuda.Stream] = {}


class Leaving:
    """uint8 [n, bytes] that will be in the host's memory; on a CPU it is there."""

    def __init__(self, data: Tensor) -> None:
        self._done: torch.cuda.Event | None = None
        self._host = data
        if data.device.type != "cuda":
            return
        if data.device not in _STREAMS:
            _STREAMS[data.device] = torch.cuda.Stream(data.device)  # type: ignore[no-untyped-call]
        stream = _STREAMS[data.device]
        self._host = torch.empty(data.shape, dtype=data.dtype, pin_memory=True)
        stream.wait_stream(torch.cuda.current_stream(data.device))
        with torch.cuda.stream(stream):
            self._host.copy_(data, non_blocking=True)
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record(stream)
        data.record_stream(stream)

    def row(self, number: int) -> bytes:
        """One block's bytes, once they are here."""
        if self._done is not None:
            self._done.synchronize()
        data: bytes = self._host[number].numpy().tobytes()
        return data
