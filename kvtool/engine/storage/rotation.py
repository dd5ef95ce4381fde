"""Hadamard rotation of heads: spreads an outlier channel over all others, so that few bits suffice.

The matrix is orthogonal and its own inverse. A query that is rotated like the keys scores the same
against rotated keys, and an attention output over rotated values is un-rotated once per head: a kernel
that reads rotated blocks never rotates what is stored.
"""

import math

from torch import Tensor, stack


def rotate(tensor: Tensor) -> Tensor:
    """[..., dim] -> the same shape and dtype, rotated within each head; twice gives the tensor again.

    A dim that is no power of two is rotated in runs of its largest power-of-two divisor (96: three of
    32). Sums are taken in a fixed order, so the bits are the same on every platform.
    """
    dim = tensor.shape[-1]
    size = dim & -dim
    half = 1
    while half < size:
        pairs = tensor.reshape(*tensor.shape[:-1], dim // (2 * half), 2, half)
        left, right = pairs[..., 0, :], pairs[..., 1, :]
        tensor = stack((left + right, left - right), -2).flatten(-3)
        half *= 2
    return tensor * math.sqrt(1 / size)


rotate_queries = rotate
"""Queries [..., dim], scored against rotated keys."""

unrotate_output = rotate
"""Attention output [..., dim] over rotated values."""
