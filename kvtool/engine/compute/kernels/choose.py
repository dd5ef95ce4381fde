"""Next tokens of a whole batch on the device: the choice of `compute/sampler.py`, one host sync for all rows.

The rules are the same (Gumbel-max over truncated scores, lowest id among equals), and so is the promise
that a seed gives the same text in any batch; the noise comes from another generator, Philox4x32-10
(Salmon et al. 2011) at counter (token id, index) under the seed, so the texts differ from a CPU's.
"""

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from kvtool.engine.compute.sampler import Sampling, truncate

STEP = 4096
"""Logits that a program looks at together."""


def choose(logits: Tensor, rows: Sequence[tuple[Sampling, int]]) -> Tensor:
    """Token ids int64 [n], on the device, from logits [n, vocab] float32.

    rows: how each request samples, and how many tokens it has generated.
    """
    device = logits.device
    samplings = [sampling for sampling, _ in rows]
    floors = _floors(logits, samplings)
    warmth = torch.tensor([sampling.temperature for sampling in samplings], device=device)
    seeds = torch.from_numpy(np.array([sampling.seed for sampling in samplings], np.uint64).view(np.int64))
    indexes = torch.tensor([index for _, index in rows], dtype=torch.int32)
    chosen = torch.empty(len(rows), dtype=torch.int64, device=device)
    _choose[(len(rows),)](
        logits, warmth, floors, seeds.to(device), indexes.to(device), chosen, logits.shape[1], STEP=STEP
    )
    return chosen


def _floors(logits: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Lowest logit [n] that top_k, top_p and min_p leave to choose from; -inf where nothing is excluded."""
    floors = logits.new_full((len(samplings),), -torch.inf)
    cut = [
        row
        for row, each in enumerate(samplings)
        if each.temperature > 0 and (each.top_k or each.top_p < 1 or each.min_p)
    ]
    if not cut:
        return floors
    vocab = logits.shape[1]
    columns = [
        (each.temperature, min(each.top_k or vocab, vocab), each.top_p, each.min_p)
        for each in (samplings[row] for row in cut)
    ]
    warmth, top_k, top_p, min_p = torch.tensor(columns, device=logits.device, dtype=torch.float64).T[
        ..., None
    ]
    ordered = logits[cut].sort(dim=1, descending=True).values
    rank = torch.arange(vocab, device=logits.device)
    last = ordered.gather(1, top_k.long() - 1)  # equals of the k-th stay
    scaled = ordered.double() / warmth
    weights = torch.where(ordered >= last, torch.exp(scaled - scaled[:, :1]), 0.0)
    mass = weights.cumsum(1) / weights.sum(1, keepdim=True)
    # The first token at which the mass reaches top_p is the last to stay.
    kept = (rank <= (mass < top_p).sum(1, keepdim=True)) & (ordered >= last)
    kept &= scaled >= scaled[:, :1] + torch.log(min_p)
    floors[cut] = torch.where(kept, ordered, torch.inf).amin(1)
    return floors


@triton.jit
def _choose(
    LOGITS,
    WARMTH,
    FLOORS,
    SEEDS,
    INDEXES,
    CHOSEN,
    vocab,
    STEP: tl.constexpr,
):
    """Grid (rows). One pass that remembers the best score and where it was first seen."""
    row = tl.program_id(0)
    warmth = tl.load(WARMTH + row)
    floor = tl.load(FLOORS + row)
    seed = tl.load(SEEDS + row)
    index = tl.load(INDEXES + row)
    top = tl.full((), float("-inf"), tl.float32)
    place = tl.zeros((), tl.int32)
    for start in range(0, vocab, STEP):
        token = start + tl.arange(0, STEP)
        logit = tl.load(LOGITS + row.to(tl.int64) * vocab + token, mask=token < vocab, other=float("-inf"))
        score = logit
        if warmth > 0:
            bits, _, _, _ = tl.philox(seed, token, index + token * 0, token * 0, token * 0)
            # 24 bits and a half: never 0 nor 1
            uniform = ((bits.to(tl.uint32, bitcast=True) >> 8).to(tl.float32) + 0.5) * (1.0 / 16777216.0)
            score = logit / warmth - tl.log(-tl.log(uniform))
        score = tl.where(logit >= floor, score, float("-inf"))
        best = tl.max(score, 0)
        if best > top:
            top = best
            place = start + tl.argmax(score, 0, tie_break_left=True)
    tl.store(CHOSEN + row, place.to(tl.int64))


def choose_reference(logits: Tensor, rows: Sequence[tuple[Sampling, int]]) -> list[int]:
    """`choose` row by row, by the CPU sampler's own truncation."""
    found = []
    for scores, (sampling, index) in zip(logits.float().cpu().numpy(), rows, strict=True):
        if sampling.temperature == 0:
            found.append(int(scores.argmax()))
            continue
        counter = np.zeros((len(scores), 4), np.uint64)
        counter[:, 0], counter[:, 1] = np.arange(len(scores)), index
        uniform = ((_philox(sampling.seed, counter) >> 8).astype(np.float64) + 0.5) / (1 << 24)
        found.append(int((truncate(scores, sampling) - np.log(-np.log(uniform))).argmax()))
    return found


def _philox(seed: int, counter: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """First word of Philox4x32-10 for counters [n, 4], each word below 2**32."""
    word = (1 << 32) - 1
    low, high = seed & word, seed >> 32
    a, b, c, d = (counter[:, column] for column in range(4))
    for _ in range(10):
        left, right = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (
            (right >> np.uint64(32)) ^ b ^ np.uint64(low),
            right & np.uint64(word),
            (left >> np.uint64(32)) ^ d ^ np.uint64(high),
            left & np.uint64(word),
        )
        low, high = (low + 0x9E3779B9) & word, (high + 0xBB67AE85) & word
    return a
