"""Rounding that errs where queries do not look: what is lost in one channel is made good by those behind it.

A score is a query times a key, so an error e of a key costs e' M e on average, where M are the second moments
of the queries. Channels are rounded one after the other, and each passes its error on in the direction that
costs least (GPTQ, Frantar et al. 2023; LDLQ in QuIP, Chee et al. 2023). Grids, bytes and decoding stay as
they are: only which of two neighbouring points is taken changes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvtool.engine.storage.grid import SMALLEST_STEP, Grid, step_sizes
from kvtool.engine.storage.rotation import rotate

DAMPING = 0.1
"""Of the mean moment, added to all directions: queries to come may look where those measured did not."""

RUN = 16
"""Channels whose errors reach those far behind them in one product."""


class Guide:
    """What queries look at, layer by layer. moments: float32 [kv_heads, key_dim, key_dim], means of q q' over
    the queries that share a head's keys."""

    def __init__(self, moments: Sequence[Tensor]) -> None:
        self.moments = tuple(moments)
        self._feedback: dict[tuple[int, ...], Tensor] = {}

    def feedback(self, layers: tuple[int, ...]) -> Tensor:
        """How much of a rotated channel's error each channel behind it takes off, for layers of one shape:
        float32 [layers, kv_heads, dim, dim], upper triangles.
        """
        if layers not in self._feedback:
            moments = torch.stack([self.moments[layer] for layer in layers]).double()
            moments = rotate(rotate(moments).transpose(2, 3))
            mean = moments.diagonal(dim1=2, dim2=3).mean(2).clamp_min(1e-30)
            moments += DAMPING * mean[..., None, None] * torch.eye(moments.shape[3], dtype=torch.float64)
            upper = torch.linalg.cholesky(torch.linalg.inv(moments), upper=True)
            self._feedback[layers] = (upper / upper.diagonal(dim1=2, dim2=3)[..., None]).float()
        return self._feedback[layers]


def steered(numbers: Tensor, grid: Grid, bits: int, feedback: Tensor) -> Tensor:
    """Codes in place of `grid.codes`: uint8 [n * layers, groups, tokens, heads, dim], as `numbers`, float32.

    The grid has an offset, and one step for each channel of a group; feedback: [layers, heads, dim, dim].
    """
    assert grid.offsets is not None
    dim = numbers.shape[4]

    def channels_first(part: Tensor) -> Tensor:
        """[dim, layers, heads, n, groups, tokens]: a channel is one stretch of memory."""
        return part.float().reshape(-1, len(feedback), *part.shape[1:]).permute(5, 1, 4, 0, 2, 3)

    left = channels_first(numbers).clone(memory_format=torch.contiguous_format)
    steps, lowest = channels_first(step_sizes(grid.steps)), channels_first(grid.offsets)
    divisors, highest = steps.clamp_min(SMALLEST_STEP), lowest + (2**bits - 1)
    weights = feedback.to(numbers.device).permute(2, 3, 0, 1)
    points = torch.empty_like(left)
    for begin in range(0, dim, RUN):
        end = min(begin + RUN, dim)
        for at in range(begin, end):
            torch.clamp((left[at] / divisors[at]).round_(), lowest[at], highest[at], out=points[at])
            left[at].addcmul_(points[at], steps[at], value=-1)  # what is left of it is its error
            near = weights[at, at + 1 : end, ..., None, None, None]
            left[at + 1 : end].addcmul_(near, left[at], value=-1)
        left[end:] -= torch.einsum("ijlh,ilhngt->jlhngt", weights[begin:end, end:], left[begin:end])
    return (points - lowest).permute(3, 1, 4, 5, 2, 0).flatten(0, 1).to(torch.uint8)
