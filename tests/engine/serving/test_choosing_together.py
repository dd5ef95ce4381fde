"""Rows chosen together on the device: the plain ones by the kernel, edited ones by their own choice."""

import pytest
import torch

from kvtool.engine.compute.sampler import GREEDY, Sampling
from kvtool.engine.serving.choosing import chooser, on_device, one_by_one

pytest.importorskip("triton")


def test_greedy_and_edited_rows_are_those_of_the_cpu() -> None:
    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(3))
    rows = [
        (chooser(GREEDY), []),
        (chooser(GREEDY, bias={7: 100.0}), [1]),
        (chooser(Sampling(temperature=0.9, seed=4), frequency_penalty=0.5), [2, 2]),
        (chooser(GREEDY), [5, 6]),
    ]
    assert on_device(logits, rows) == one_by_one(logits, rows)
    assert on_device(logits, rows)[1] == 7


def test_a_seeded_row_is_the_same_beside_others_and_moves_on_with_its_answer() -> None:
    logits = torch.randn(1, 500, generator=torch.Generator().manual_seed(4)).expand(3, 500)
    warm = chooser(Sampling(temperature=2.0, seed=9))
    alone = on_device(logits[:1], [(warm, [])])
    mixed = on_device(logits, [(chooser(GREEDY), []), (chooser(GREEDY, bias={1: -1.0}), []), (warm, [])])
    assert mixed[2:] == alone
    drawn = {on_device(logits[:1], [(warm, [0] * count)])[0] for count in range(12)}
    assert len(drawn) > 3
