"""How likely chosen tokens were, and what was likeliest in their places, of many rows at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvtool.engine.compute.device import download


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token that was chosen, with the likeliest ones at its place: (token id, natural log)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """On the host once the device's stream has come so far: logs of the chosen tokens float32 [n], of the
    likeliest ones [n, top] and their ids int64 [n, top]."""

    chosen: Tensor
    values: Tensor
    ids: Tensor

    def of(self, row: int, token: int, top: int) -> TokenLogprob:
        """A row's, whose chosen token was `token`."""
        ids, values = self.ids[row, :top].tolist(), self.values[row, :top].tolist()
        return TokenLogprob(token, float(self.chosen[row]), tuple(zip(ids, values, strict=True)))


def logprobs_of(logits: Tensor, tokens: Tensor, tops: Sequence[int]) -> Logprobs:
    """Of `tokens` int64 [n] among logits [n, vocab]; `tops`: how many likeliest ones each row wants."""
    with torch.inference_mode():
        scores = logits.float().log_softmax(-1)
        values, ids = scores.topk(max(tops), dim=-1)
        chosen = scores.gather(1, tokens[:, None])[:, 0]
        return Logprobs(download(chosen), download(values), download(ids))
