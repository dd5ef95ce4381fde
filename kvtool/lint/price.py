"""What a finding costs: replays of the log with the finding repaired, against the log as it is."""

from collections.abc import Sequence

from kvtool.analysis.hit_rates import HitRates, replay_ids
from kvtool.blocks import TokenIds
from kvtool.lint.corpus import Corpus
from kvtool.lint.repair import Repair
from kvtool.requests import Request
from kvtool.tokens import PromptEncoder


class Pricer:
    """Replays of one log. Only the requests that a repair touches are rendered and tokenized again."""

    def __init__(self, corpus: Corpus, block_size: int) -> None:
        self.corpus = corpus
        self.block_size = block_size
        self.spaces = spaces(corpus.requests)
        self.base_ids = corpus.encoder.encode(corpus.requests)
        self.base = self._replay(self.base_ids, self.spaces)

    def repaired(self, repair: Repair) -> HitRates:
        """Hit rates of the log with `repair` made."""
        indices = sorted(repair.touched())
        edited = [repair.apply(index, self.corpus.requests[index]) for index in indices]
        ids, numbers = list(self.base_ids), self.spaces
        if repair.spaces:
            requests = list(self.corpus.requests)
            for index, request in zip(indices, edited, strict=True):
                requests[index] = request
            numbers = spaces(requests)
        for index, tokens in zip(indices, self.corpus.encoder.encode(edited), strict=True):
            ids[index] = tokens
        return self._replay(ids, numbers)

    def _replay(self, ids: Sequence[TokenIds], numbers: Sequence[int]) -> HitRates:
        return replay_ids(ids, self.block_size, numbers, order=self.corpus.order)


def spaces(requests: Sequence[Request]) -> list[int]:
    """A number per request: requests of different models or tenants never share."""
    numbers: dict[tuple[str | None, str | None], int] = {}
    return [numbers.setdefault((request.model, request.tenant), len(numbers)) for request in requests]


def replayed(
    requests: Sequence[Request], order: Sequence[int], encoder: PromptEncoder, block_size: int
) -> HitRates:
    """Hit rates of `requests` as they stand, in the given order of arrival."""
    return replay_ids(encoder.encode(requests), block_size, spaces(requests), order=order)
