"""How the host speaks to a device: without waiting for what it is computing, and to the one that it means."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def upload(values: Tensor, device: torch.device) -> Tensor:
    """`values` of the CPU on `device`, in the order of its stream.

    A plain copy from pageable memory waits until the device has done all that was queued before it. From
    page-locked memory it does not; torch keeps that memory until the copy is done.
    """
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def download(values: Tensor) -> Tensor:
    """`values` on the host, in page-locked memory that is filled when their stream has come so far."""
    pinned = values.device.type == "cuda"
    return torch.empty(values.shape, dtype=values.dtype, pin_memory=pinned).copy_(values, non_blocking=True)


def on(device: torch.device) -> AbstractContextManager[object]:
    """Kernels and captures inside go to `device`: unlike torch's own operations they take the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
