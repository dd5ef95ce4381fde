"""What a finding costs: replays of the log with the finding repaired, against the log as it is."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kvtool.analysis.hit_rates import HitRates, replay_ids
from kvtool.blocks import TokenIds
from kvtool.lint.corpus import Corpus
from kvtool.lint.repair import Repair
from kvtool.report import Finding
from kvtool.requests import Request
from kvtool.tokens import PromptEncoder


class Pricer:
    """Replays of one log. Only the requests that a repair touches are rendered and tokenized again."""

    def __init__(self, corpus: Corpus, block_size: int) -> None:
        self.corpus = corpus
        self.block_size = block_size
        self.spaces = spaces(corpus.requests)
        self.base_ids = corpus.encoder.tokenizer.encode_batch([one.text for one in corpus.rendered])
        self.base = self._replay(self.base_ids, self.spaces)

    def repaired(self, repair: Repair) -> HitRates:
        """Hit rates of the log with `repair` made."""
        indices = sorted(repair.touched())
        texts: list[str] = []
        for index in indices:
            spliced = self._spliced(index, repair)
            if spliced is None:
                spliced = self.corpus.encoder.render(repair.apply(index, self.corpus.requests[index])).text
            texts.append(spliced)
        ids, numbers = list(self.base_ids), self.spaces
        for index, tokens in zip(indices, self.corpus.encoder.tokenizer.encode_batch(texts), strict=True):
            ids[index] = tokens
        if repair.spaces:
            requests = [repair.apply(index, request) for index, request in enumerate(self.corpus.requests)]
            numbers = spaces(requests)
        return self._replay(ids, numbers)

    def _spliced(self, index: int, repair: Repair) -> str | None:
        """The prompt with characters replaced where the template prints them as they are, else None."""
        if index not in repair.texts or repair.changes_structure(index):
            return None
        rendered = self.corpus.rendered[index]
        cuts = []
        for path, start, end, new in set(repair.texts[index]):
            spans = [span for span in rendered.spans if span.path == path]
            if len(spans) != 1 or spans[0].offset < 0:
                return None
            span = spans[0]
            first, last = span.start + start - span.offset, span.start + end - span.offset
            if first < span.start or last > span.end:
                return None
            cuts.append((first, last, new))
        text = rendered.text
        for first, last, new in sorted(cuts, reverse=True):
            text = text[:first] + new + text[last:]
        return text

    def _replay(self, ids: Sequence[TokenIds], numbers: Sequence[int]) -> HitRates:
        return replay_ids(ids, self.block_size, numbers, order=self.corpus.order)


def spaces(requests: Sequence[Request]) -> list[int]:
    """A number per request: requests of different models or tenants never share."""
    numbers: dict[tuple[str | None, str | None], int] = {}
    return [numbers.setdefault((request.model, request.tenant), len(numbers)) for request in requests]


def in_money(findings: Iterable[Finding], price: tuple[float, float] | None) -> list[Finding]:
    """`findings` with what they cost. price: USD per million prompt tokens, (uncached, cached)."""
    if price is None:
        return list(findings)
    difference = (price[0] - price[1]) / 1e6
    return [replace(one, lost_usd=round(one.lost_tokens * difference, 6)) for one in findings]


def replayed(
    requests: Sequence[Request], order: Sequence[int], encoder: PromptEncoder, block_size: int
) -> HitRates:
    """Hit rates of `requests` as they stand, in the given order of arrival."""
    return replay_ids(encoder.encode(requests), block_size, spaces(requests), order=order)
