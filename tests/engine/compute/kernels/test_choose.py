"""The device's sampler: the CPU sampler's rules, the same choice in any batch, Philox as published."""

import numpy as np
import pytest
import torch

from kvtool.engine.compute.kernels.choose import _philox, choose, choose_reference
from kvtool.engine.compute.sampler import GREEDY, Sampling

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SAMPLINGS = [
    GREEDY,
    Sampling(temperature=1.0, seed=1),
    Sampling(temperature=0.3, seed=2),
    Sampling(temperature=1.5, top_k=5, seed=1 << 63),
    Sampling(temperature=1.0, top_p=0.6, seed=4),
    Sampling(temperature=2.0, min_p=0.2, seed=5),
    Sampling(temperature=0.8, top_k=40, top_p=0.9, min_p=0.05, seed=(1 << 64) - 1),
    Sampling(temperature=1.0, top_k=1, seed=7),
]


def test_philox_of_the_published_vectors() -> None:
    """kat_vectors of the authors' Random123: philox4x32, 10 rounds."""
    ones = (1 << 32) - 1
    assert _philox(0, np.zeros((1, 4), np.uint64)).tolist() == [0x6627E8D5]
    assert _philox((1 << 64) - 1, np.full((1, 4), ones, np.uint64)).tolist() == [0x408F276D]


@pytest.mark.parametrize("vocab", [50, 4096, 9001])
def test_same_choices_as_the_reference(vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    for index in (0, 1, 999):
        logits = (torch.randn(len(SAMPLINGS), vocab, generator=generator) * 3).to(DEVICE)
        rows = [(sampling, index) for sampling in SAMPLINGS]
        assert choose(logits, rows).tolist() == choose_reference(logits, rows)


def test_a_rows_choice_does_not_depend_on_its_batch() -> None:
    logits = torch.randn(len(SAMPLINGS), 300, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    rows = [(sampling, 3) for sampling in SAMPLINGS]
    together = choose(logits, rows).tolist()
    assert [choose(logits[row : row + 1], rows[row : row + 1]).item() for row in range(len(rows))] == together


def test_lowest_id_among_equals() -> None:
    logits = torch.zeros(2, 9000, device=DEVICE)
    logits[0, [70, 5000]] = 2.0
    logits[1, [4096, 4097]] = 2.0
    assert choose(logits, [(GREEDY, 0)] * 2).tolist() == [70, 4096]


def test_equals_of_the_last_that_top_k_keeps_stay() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0, 2.0, 0.0]], device=DEVICE)
    seen = {choose(logits, [(Sampling(temperature=5.0, top_k=2, seed=seed), 0)]).item() for seed in range(60)}
    assert seen == {0, 2, 3}
