"""From a request's sampling fields to the function that picks its tokens, and how likely those were."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvtool.engine.compute.sampler import Sampling, sample
from kvtool.engine.serving.generation import Choose, TokenLogprob


@dataclass(frozen=True, slots=True)
class Plain:
    """Nothing but the sampling: rows of this kind can be chosen together."""

    sampling: Sampling

    def __call__(self, logits: Tensor, generated: Sequence[int]) -> int:
        """One row's token."""
        return sample(logits, self.sampling, len(generated))


def chooser(
    sampling: Sampling,
    bias: dict[int, float] | None = None,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
) -> Choose:
    """Penalties count the answer's tokens, as OpenAI defines them; the bias is added to the logits."""
    if not bias and not frequency_penalty and not presence_penalty:
        return Plain(sampling)

    def choose(logits: Tensor, generated: Sequence[int]) -> int:
        edited = logits.float().cpu().clone()
        if bias:
            edited[torch.tensor(list(bias))] += torch.tensor(list(bias.values()))
        for token, count in Counter(generated).items():
            edited[token] -= frequency_penalty * count + presence_penalty
        return sample(edited, sampling, len(generated))

    return choose


def logprob_of(logits: Tensor, token: int, top: int) -> TokenLogprob:
    """The chosen token's log probability among `logits` [vocab], and those of the `top` likeliest."""
    scores = logits.float().log_softmax(-1)
    values, ids = scores.topk(top) if top else (scores[:0], scores[:0])
    likeliest = tuple(zip(ids.long().tolist(), values.tolist(), strict=True))
    return TokenLogprob(token, float(scores[token]), likeliest)
