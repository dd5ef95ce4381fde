"""Next tokens of a whole batch on the device: the choice of `compute/sampler.py`, and no host sync for it.

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

from kvtool.engine.compute.device import upload
from kvtool.engine.compute.sampler import Sampling, truncate

STEP = 4096
"""Logits that a program looks at together."""


def choose(logits: Tensor, rows: Sequence[tuple[Sampling, int]]) -> Tensor:
    """Token ids int64 [n], on the device, from logits [n, vocab] float32.

    rows: how each request samples, and how many tokens it has generated.
    """
    device = logits.device
    samplings = [sampling for sampling, _ in rows]
    real = np.empty((3, len(rows)))
    real[:] = np.array([(each.temperature, each.top_p, each.min_p) for each in samplings]).T
    whole = np.empty((3, len(rows)), np.uint64)
    whole[:] = np.array([(each.seed, each.top_k, index) for each, index in rows], np.uint64).T
    warmth, top_p, min_p = upload(torch.from_numpy(real), device)
    seed, top_k, index = upload(torch.from_numpy(whole.view(np.int64)), device)
    cut = [
        row
        for row, each in enumerate(samplings)
        if each.temperature > 0 and (each.top_k or each.top_p < 1 or each.min_p)
    ]
    floors = logits.new_full((len(rows),), -torch.inf)
    if cut:
        some = upload(torch.tensor(cut), device)
        lowest = _floors(logits[some], warmth[some], top_k[some], top_p[some], min_p[some])
        floors.index_copy_(0, some, lowest)
    chosen = torch.empty(len(rows), dtype=torch.int64, device=device)
    _choose[(len(rows),)](
        logits, warmth.float(), floors, seed, index.int(), chosen, logits.shape[1], STEP=STEP
    )
    return chosen


def _floors(logits: Tensor, warmth: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Lowest logit [n] that the cuts [n] leave to choose from; a top_k of 0 is off."""
    vocab = logits.shape[1]
    warmth, top_p, min_p = warmth[:, None], top_p[:, None], min_p[:, None]
    most = torch.where(top_k > 0, top_k, vocab).clamp(max=vocab)[:, None]
    ordered = logits.sort(dim=1, descending=True).values
    rank = torch.arange(vocab, device=logits.device)
    last = ordered.gather(1, most - 1)  # equals of the k-th stay
    scaled = ordered.double() / warmth
    weights = torch.where(ordered >= last, torch.exp(scaled - scaled[:, :1]), 0.0)
    mass = weights.cumsum(1) / weights.sum(1, keepdim=True)
    # The first token at which the mass reaches top_p is the last to stay.
    kept = (rank <= (mass < top_p).sum(1, keepdim=True)) & (ordered >= last)
    kept &= scaled >= scaled[:, :1] + torch.log(min_p)
    return torch.where(kept, ordered, torch.inf).amin(1)


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
