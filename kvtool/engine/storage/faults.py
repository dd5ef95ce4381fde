"""What keeps a block from being coded: a byte a block, found on the device and read when its bytes are used.

A check that the host waited for would wait for everything that the device has to do before.
"""

import torch
from torch import Tensor

from kvtool.errors import KvtoolError

KEYS, VALUES, RANGE = 1, 2, 3
"""Keys or values are not finite, or an element is beyond what the codec can hold. 0 is no fault."""


def faults(keys: Tensor, values: Tensor, held: Tensor | None) -> Tensor:
    """uint8 [n]: a fault for each of n rows of keys and values [n, ...]; held: bool [n], None if all are."""
    found = torch.zeros(len(keys), dtype=torch.uint8, device=keys.device)
    if held is not None:
        found.masked_fill_(~held, RANGE)
    return found.masked_fill_(~_finite(values), VALUES).masked_fill_(~_finite(keys), KEYS)


def refuse(fault: int, codec: str, dtype: str) -> None:
    """KvtoolError if there is one. codec: its name; dtype: the arena's."""
    if fault == RANGE:
        raise KvtoolError(f"an element is too large for codec {codec}", "use --codec raw")
    if fault:
        noun = "keys" if fault == KEYS else "values"
        raise KvtoolError(f"the model's {noun} are not finite in {dtype}", "use --dtype float32 or bfloat16")


def _finite(numbers: Tensor) -> Tensor:
    """bool [n] of numbers [n, ...]. On a CPU sums first: fast, and finite only if all numbers are."""
    rows = numbers.flatten(1)
    if rows.device.type == "cpu":
        sums = torch.isfinite(rows.sum(1, dtype=torch.float32))
        if bool(sums.all()):
            return sums
    return torch.isfinite(rows).all(1)
