"""Hit rates of a bounded cache: one definition for replay, the LRU curve, Belady and routing."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvtool.analysis.flops import Prefill
from kvtool.analysis.hit_rates import capped, ratio
from kvtool.analysis.workload import Workload


@dataclass(frozen=True, slots=True)
class Rates:
    """Hit rates of a cache. tokens, tokens_full and tokens_uncapped differ in what of a matched prompt
    counts: full blocks without the last token's, full blocks, everything. rebuild_flops_saved: share of
    the prefill FLOPs that hits save."""

    tokens: float
    tokens_full: float
    tokens_uncapped: float
    blocks: float
    request_mean: float
    rebuild_flops_saved: float
    hit_blocks: int


def rates_of(
    workload: Workload, matched: NDArray[np.int64], prefill: Prefill, measured: slice = slice(None)
) -> Rates:
    """Rates of the `measured` requests, of which `matched` [r] blocks each were found."""
    found, size = matched[measured], workload.block_size
    tokens, lengths = workload.prompt_tokens[measured], workload.lengths[measured]
    saved = capped(found, tokens, size)
    total = tokens.sum()
    return Rates(
        tokens=ratio(saved.sum(), total),
        tokens_full=ratio((np.minimum(found, tokens // size) * size).sum(), total),
        tokens_uncapped=ratio(np.minimum(found * size, tokens).sum(), total),
        blocks=ratio(found.sum(), lengths.sum()),
        request_mean=ratio((found / np.maximum(lengths, 1)).sum(), len(found)),
        rebuild_flops_saved=ratio(prefill.cost(saved).sum(), prefill.cost(tokens).sum()),
        hit_blocks=int(found.sum()),
    )
