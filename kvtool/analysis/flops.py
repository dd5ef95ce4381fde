"""What a prefill costs, in FLOPs: linear layers per token, attention per token and token before it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Prefill:
    """linear: FLOPs of a token's linear layers; attention: FLOPs of a token per token it attends to.

    windows: (FLOPs, tokens) of layers that attend to no more than so many tokens; not in `attention`.
    """

    linear: float
    attention: float
    windows: tuple[tuple[float, int], ...] = ()

    def cost(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """FLOPs to compute the first `tokens` tokens of a prompt, each entry on its own."""
        known = tokens.astype(np.float64)
        total: NDArray[np.float64] = self.linear * known + self.attention * known * (known - 1) / 2
        for each, window in self.windows:
            grows = np.minimum(known, window)
            total += each * (grows * (grows - 1) / 2 + (known - grows) * window)
        return total

    def block_cost(self, depth: NDArray[np.int64], block_size: int) -> NDArray[np.float64]:
        """FLOPs to compute the block at `depth` when its parent is there."""
        first = depth.astype(np.int64) * block_size
        return self.cost(first + block_size) - self.cost(first)


TYPICAL = Prefill(linear=2 * 7e9, attention=4.0 * 32 * 4096)
"""A dense model of 7 billion weights, 32 layers of width 4096: where no model is named."""
