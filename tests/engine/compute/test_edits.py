"""Bias and penalties as OpenAI defines them, token by token, whatever else is in the batch."""

from collections import Counter
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtool.engine.compute.edits import Answer, Edits, edited

VOCAB = 40
TOKENS = st.integers(0, VOCAB - 1)
AMOUNTS = st.floats(-2, 2, width=16)
PREVIOUS = torch.tensor([3, 39, 0, 3])


@st.composite
def answers(draw: Any) -> Answer:
    penalties = draw(st.sampled_from([(0.0, 0.0), (0.5, 0.0), (0.0, -1.5), (-2.0, 0.7)]))
    edits = Edits(draw(st.dictionaries(TOKENS, AMOUNTS, max_size=4)), *penalties)
    follows = draw(st.none() | st.integers(0, len(PREVIOUS) - 1))
    return Answer(edits, draw(st.lists(TOKENS, max_size=12)), follows)


def one_by_one(logits: np.ndarray, answer: Answer) -> np.ndarray:
    """mu[j] -> mu[j] + bias[j] - c[j] * frequency - (c[j] > 0) * presence"""
    logits = logits.copy()
    for token, value in answer.edits.bias.items():
        logits[token] += np.float32(value)
    said = [*answer.tokens, *([] if answer.follows is None else [int(PREVIOUS[answer.follows])])]
    for token, count in Counter(said).items():
        logits[token] -= np.float32(answer.edits.frequency_penalty * count + answer.edits.presence_penalty)
    return logits


@settings(max_examples=200, deadline=None)
@given(st.lists(answers(), min_size=1, max_size=5), st.integers(0, 1 << 30))
def test_as_token_by_token(batch: list[Answer], seed: int) -> None:
    logits = torch.randn(len(batch), VOCAB, generator=torch.Generator().manual_seed(seed)) * 8
    before = logits.clone()
    found = edited(logits, batch, PREVIOUS)
    for row, answer in enumerate(batch):
        np.testing.assert_array_equal(found[row].numpy(), one_by_one(before[row].numpy(), answer))
    assert torch.equal(logits, before), "the model's logits are what logprobs are read from"


def test_nothing_is_copied_for_requests_without_edits() -> None:
    logits = torch.randn(2, VOCAB)
    assert edited(logits, [Answer(Edits(), [1], 0), Answer(Edits())], PREVIOUS) is logits
