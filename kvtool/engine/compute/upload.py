"""Small tensors on their way to the device, without waiting for what it is computing."""

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
