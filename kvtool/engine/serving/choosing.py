"""From a request's sampling fields to the function that picks its tokens, and how likely those were."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvtool.engine.compute.sampler import Sampling, sample
from kvtool.engine.serving.generation import Choose, TokenLogprob

Pick = Callable[[Any, Sequence[tuple[Choose, Sequence[int]]]], list[int]]
"""Tokens for logits [n, vocab], given each row's choice and the tokens that it has generated."""


@dataclass(frozen=True, slots=True)
class Plain:
    """Nothing but the sampling: rows of this kind can be chosen together."""

    sampling: Sampling

    def __call__(self, logits: Tensor, generated: Sequence[int]) -> int:
        """One row's token."""
        return sample(logits, self.sampling, len(generated))


def one_by_one(logits: Any, rows: Sequence[tuple[Choose, Sequence[int]]]) -> list[int]:
    """Each row by its own choice."""
    return [choose(logits[row], generated) for row, (choose, generated) in enumerate(rows)]


def on_device(logits: Tensor, rows: Sequence[tuple[Choose, Sequence[int]]]) -> list[int]:
    """Plain rows together where the logits are; those that edit their logits each by its own choice."""
    from kvtool.engine.compute.kernels.choose import choose

    plain = [row for row, (how, _) in enumerate(rows) if isinstance(how, Plain)]
    tokens = [0] * len(rows)
    if plain:
        settings = [(rows[row][0].sampling, len(rows[row][1])) for row in plain]  # type: ignore[attr-defined]
        some = logits if len(plain) == len(rows) else logits[plain]
        for row, token in zip(plain, choose(some.contiguous(), settings).tolist(), strict=True):
            tokens[row] = token
    for row, (how, generated) in enumerate(rows):
        if not isinstance(how, Plain):
            tokens[row] = how(logits[row], generated)
    return tokens


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
