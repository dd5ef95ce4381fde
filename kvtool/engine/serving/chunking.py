"""How many of its prompt's tokens each request computes in the next forward."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvtool.engine.serving.generation import Generation

REST = 8
"""What part of a chunk goes with the chunk before it: a few tokens' step reads all weights, too."""


@dataclass(frozen=True, slots=True)
class Limits:
    """chunk_tokens: most tokens of one forward that are not decodes, but for a prompt's last few.

    running: most requests in it.
    """

    chunk_tokens: int = 512
    running: int = 16


def prefills(
    requests: Iterable[Generation], limits: Limits, block_size: int
) -> Iterator[tuple[Generation, int]]:
    """(request, tokens) of the requests that have more than one token to compute and wait for no load, in
    their order, as far as the budget reaches."""
    left = limits.chunk_tokens
    for request in requests:
        remaining = request.remaining
        if remaining == 1 or request.loading or left <= 0:
            continue
        count = min(remaining, left)
        if remaining - count <= limits.chunk_tokens // REST:
            count = remaining
        if count < remaining:  # end at a block's border: fewer chunk shapes, the same sums on a rerun
            count = (request.computed + count) // block_size * block_size - request.computed
        if count > 0:
            yield request, count
            left -= count
