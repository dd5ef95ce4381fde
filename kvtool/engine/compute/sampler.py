"""Next-token choice: greedy, temperature, top-k, top-p, min-p, with a random stream of each request's own.

The noise of a request's n-th token is a function of (seed, n, token id) alone. So a seed gives the same
text whatever else runs in the batch, after a preemption, and whether the prefix hit or missed. Noise
is added to the logits (Gumbel-max): a last-bit change of the logits, which another batch brings about,
changes the choice only when the best two are that close.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kvtool.errors import KvtoolError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a request chooses its tokens. Temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off.

    The order is temperature, top_k, top_p, min_p, as in transformers. A value out of range is a
    KvtoolError that names the field.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for field, value, good, expected in (
            ("temperature", self.temperature, 0 <= self.temperature < np.inf, "0 or more"),
            ("top_k", self.top_k, self.top_k >= 0, "0 or more"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "above 0, at most 1"),
            ("min_p", self.min_p, 0 <= self.min_p <= 1, "between 0 and 1"),
            ("seed", self.seed, 0 <= self.seed < 1 << 64, "a 64-bit unsigned integer"),
        ):
            if not good:
                raise KvtoolError(f"{field} is {value}", f"it must be {expected}")


GREEDY = Sampling()


def sample(logits: Tensor, sampling: Sampling, index: int) -> int:
    """Token id chosen from `logits` [vocab]; `index` counts the request's generated tokens from 0."""
    scores = logits.float().cpu().numpy()
    if sampling.temperature == 0:
        return int(scores.argmax())  # the lowest id among equals
    return int((truncate(scores, sampling) + gumbel(sampling.seed, index, len(scores))).argmax())


def truncate(scores: NDArray[np.float32], sampling: Sampling) -> NDArray[np.float64]:
    """Scores [vocab] divided by the temperature, -inf where top_k, top_p or min_p exclude a token."""
    scaled = scores.astype(np.float64) / sampling.temperature
    if 0 < sampling.top_k < len(scaled):
        scaled[scaled < np.partition(scaled, -sampling.top_k)[-sampling.top_k]] = -np.inf
    if sampling.top_p < 1:
        order = np.argsort(-scaled, kind="stable")
        weights = np.exp(scaled[order] - scaled[order[0]])
        mass = np.cumsum(weights) / weights.sum()
        scaled[order[np.searchsorted(mass, sampling.top_p) + 1 :]] = -np.inf
    if sampling.min_p > 0:
        scaled[scaled < scaled.max() + np.log(sampling.min_p)] = -np.inf
    return scaled


def gumbel(seed: int, index: int, vocab: int) -> NDArray[np.float64]:
    """Standard Gumbel noise [vocab] of a request's token `index`."""
    stream = np.random.Generator(np.random.Philox(key=seed, counter=index << 128))
    # random() is in [0, 1): 1 - u excludes 0, and a u of 0 gives noise of +inf, once in 2**53.
    uniform = np.maximum(stream.random(vocab), 2.0**-54)
    noise: NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise
