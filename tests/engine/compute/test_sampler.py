"""Token choice: each truncation against its definition, frequencies, and independence of everything else."""

import math

import numpy as np
import pytest
import torch

from kvtool.engine.compute.sampler import GREEDY, Sampling, sample, truncate
from kvtool.errors import KvtoolError

PROBABILITIES = np.array([0.05, 0.4, 0.1, 0.25, 0.2])
LOGITS = torch.tensor(np.log(PROBABILITIES) + 3.0, dtype=torch.float32)


def kept(**options: float) -> list[int]:
    scores = truncate(LOGITS.numpy(), Sampling(temperature=1.0, **options))
    return np.flatnonzero(np.isfinite(scores)).tolist()


def test_greedy_takes_the_lowest_id_among_equals():
    assert sample(torch.tensor([0.0, 2.0, 2.0, -1.0]), GREEDY, 0) == 1


def test_truncations_follow_their_definitions():
    assert kept(top_k=2) == [1, 3]
    assert kept(top_k=99) == [0, 1, 2, 3, 4]
    assert kept(top_p=0.39) == [1]
    assert kept(top_p=0.41) == [1, 3]  # the smallest set whose mass reaches top_p
    assert kept(top_p=0.9) == [1, 2, 3, 4]
    assert kept(min_p=0.45) == [1, 3, 4]  # at least that share of the most likely one's probability
    assert kept(top_k=3, top_p=0.5) == [1, 3]  # top_p looks at what top_k left: 0.47, 0.76, 1


def test_temperature_scales_logits():
    scores = truncate(LOGITS.numpy(), Sampling(temperature=0.5))
    weights = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(weights, PROBABILITIES**2 / (PROBABILITIES**2).sum(), rtol=1e-5)


def test_frequencies_are_the_probabilities():
    sampling = Sampling(temperature=1.0, top_k=4, seed=11)
    draws = 20_000
    counts = np.bincount([sample(LOGITS, sampling, index) for index in range(draws)], minlength=5)
    expected = np.where(PROBABILITIES > 0.06, PROBABILITIES, 0) / 0.95
    for count, share in zip(counts, expected, strict=True):
        assert abs(count - draws * share) < 4.5 * math.sqrt(draws * share * (1 - share)) + 1e-9


def test_a_seed_gives_the_same_tokens_from_any_index_on():
    sampling = Sampling(temperature=1.0, seed=5)
    whole = [sample(LOGITS, sampling, index) for index in range(50)]
    assert [sample(LOGITS, sampling, index) for index in range(30, 50)] == whole[30:]
    assert [sample(LOGITS, Sampling(temperature=1.0, seed=6), index) for index in range(50)] != whole


def test_rounding_noise_of_the_logits_does_not_change_the_choice():
    rng = np.random.default_rng(0)
    logits = torch.tensor(rng.normal(size=5000) * 2, dtype=torch.float32)
    jitter = torch.tensor(rng.normal(size=5000) * 1e-6, dtype=torch.float32)
    sampling = Sampling(temperature=1.0, seed=3)
    assert all(sample(logits, sampling, n) == sample(logits + jitter, sampling, n) for n in range(300))


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1), ("temperature", math.nan), ("top_k", -1), ("top_p", 0), ("min_p", 2), ("seed", -1)],
)
def test_bad_values_are_named(field, value):
    with pytest.raises(KvtoolError, match=field):
        Sampling(**{field: value})
