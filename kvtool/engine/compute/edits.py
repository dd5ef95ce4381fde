"""Logit bias and penalties: what requests add to their logits before a token is chosen, wherever that is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kvtool.engine.compute.device import upload


@dataclass(frozen=True, slots=True)
class Edits:
    """bias: token id -> what is added to its logit. Penalties count the answer's tokens as OpenAI defines."""

    bias: Mapping[int, float] = field(default_factory=dict)
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.bias) or self.penalizes

    @property
    def penalizes(self) -> bool:
        """Whether the answer's tokens matter."""
        return bool(self.frequency_penalty or self.presence_penalty)


@dataclass(frozen=True, slots=True)
class Answer:
    """A row's edits, the tokens of its answer that are known here, and which of those that the step before
    has chosen is one more (None for none)."""

    edits: Edits
    tokens: Sequence[int] = ()
    follows: int | None = None


def edited(logits: Tensor, answers: Sequence[Answer], previous: Tensor | None = None) -> Tensor:
    """Logits [n, vocab] float32 with each row's edits made: a new tensor, or the same one if there are none.

    previous: int64 on the same device, what rows may follow.
    """
    if not any(answer.edits for answer in answers):
        return logits
    logits = logits.clone()
    vocab = logits.shape[1]
    bias = [
        (row * vocab + token, value)
        for row, answer in enumerate(answers)
        for token, value in answer.edits.bias.items()
    ]
    if bias:
        places, values = zip(*bias, strict=True)
        device = logits.device
        logits.view(-1).index_add_(
            0, upload(torch.tensor(places), device), upload(torch.tensor(values), device)
        )
    rows = [row for row, answer in enumerate(answers) if answer.edits.penalizes]
    if rows:
        some = upload(torch.tensor(rows), logits.device)
        amounts = _penalties([answers[row] for row in rows], vocab, logits.device, previous)
        logits.index_add_(0, some, amounts, alpha=-1)
    return logits


def _penalties(
    answers: Sequence[Answer], vocab: int, device: torch.device, previous: Tensor | None
) -> Tensor:
    """What to take off, float32 [n, vocab]."""
    counts = torch.zeros(len(answers) * vocab, dtype=torch.float64, device=device)
    known = [row * vocab + np.array(answer.tokens, np.int64) for row, answer in enumerate(answers)]
    places = upload(torch.from_numpy(np.concatenate(known)), device)
    counts.index_add_(0, places, counts.new_ones(len(places)))
    following = [(row, answer.follows) for row, answer in enumerate(answers) if answer.follows is not None]
    if following:
        assert previous is not None
        rows, follows = upload(torch.tensor(following).T.contiguous(), device)
        counts.index_add_(0, rows * vocab + previous[follows], counts.new_ones(len(rows)))
    counts = counts.view(len(answers), vocab)
    weights = [(answer.edits.frequency_penalty, answer.edits.presence_penalty) for answer in answers]
    frequency, presence = upload(torch.tensor(weights, dtype=torch.float64), device).T[:, :, None]
    amounts: Tensor = frequency * counts + presence * (counts > 0)
    return amounts.float()
