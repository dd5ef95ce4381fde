"""What a finding costs: replays of the log with findings repaired, against the log as it is.

A replay is made from another one: only the prompts on which they differ are rendered and tokenized.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvtool.analysis.flops import Prefill
from kvtool.analysis.hit_rates import HitRates, replay_ids
from kvtool.blocks import TokenIds
from kvtool.lint.corpus import Corpus
from kvtool.lint.repair import Repair
from kvtool.requests import Request
from kvtool.tokens import PromptEncoder

SUSTAINED = 400e12
"""FLOP/s: about 40 % of what an H100 can do at most in dense 16-bit arithmetic."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The log with repairs `numbers` made. ids: its prompts. saved: reusable tokens of each, int64 [r], in
    the order of the log."""

    numbers: frozenset[int]
    ids: Sequence[TokenIds]
    rates: HitRates
    saved: NDArray[np.int64]


class Pricer:
    """Replays of one log with any of `repairs` made."""

    def __init__(self, corpus: Corpus, block_size: int, repairs: Sequence[Repair] = ()) -> None:
        self.corpus = corpus
        self.block_size = block_size
        self._repairs = repairs
        self._touching: dict[int, list[int]] = {}
        for number, repair in enumerate(repairs):
            for index in repair.rewritten():
                self._touching.setdefault(index, []).append(number)
        ids = corpus.encoder.tokenizer.encode_batch([one.text for one in corpus.rendered])
        self.base = self._replay(frozenset(), ids)

    def repaired(self, numbers: Iterable[int], like: Replay | None = None) -> Replay:
        """The replay with the repairs of these numbers made, the first ones first where they disagree.

        like: a replay that has most of them; only what the others touch is encoded again.
        """
        wanted, like = frozenset(numbers), like or self.base
        ids = list(like.ids)
        texts: dict[int, str] = {}
        for index in sorted({at for n in wanted ^ like.numbers for at in self._repairs[n].rewritten()}):
            made = [number for number in self._touching[index] if number in wanted]
            if made:
                texts[index] = self._text(index, made)
            else:
                ids[index] = self.base.ids[index]
        encoded = self.corpus.encoder.tokenizer.encode_batch(list(texts.values()))
        for index, tokens in zip(texts, encoded, strict=True):
            ids[index] = tokens
        return self._replay(wanted, ids)

    def _replay(self, numbers: frozenset[int], ids: Sequence[TokenIds]) -> Replay:
        changed: dict[int, tuple[str | None, str | None]] = {}
        for number in sorted(numbers, reverse=True):
            changed |= self._repairs[number].spaces
        order = self.corpus.order
        rates = replay_ids(ids, self.block_size, spaces(self.corpus.requests, changed), order=order)
        saved = np.empty_like(rates.saved)
        saved[order] = rates.saved
        return Replay(numbers, ids, rates, saved)

    def _text(self, index: int, numbers: Sequence[int]) -> str:
        """The prompt of a request with these repairs made."""
        repair = Repair()
        for number in numbers:
            repair.merge(self._repairs[number].at(index))
        spliced = self._spliced(index, repair)
        if spliced is not None:
            return spliced
        return self.corpus.encoder.render(repair.apply(index, self.corpus.requests[index])).text

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


def lost_tokens(before: Replay, after: Replay) -> int:
    """Tokens outside of what was repaired that a cache would serve more after it.

    A repair takes text away; tokens of that text which hit before are no loss.
    """
    lost = int((after.saved - before.saved).sum())
    for index, (old, new) in enumerate(zip(before.ids, after.ids, strict=True)):
        gone = len(old) - len(new)
        if old is not new and gone > 0:
            length = len(new)
            differs = np.flatnonzero(np.asarray(old[:length]) != np.asarray(new))
            start = int(differs[0]) if differs.size else length
            lost += min(max(int(before.saved[index]) - start, 0), gone)
    return lost


def spaces(
    requests: Sequence[Request], changed: Mapping[int, tuple[str | None, str | None]] | None = None
) -> list[int]:
    """A number per request: those of different models or tenants never share. changed: theirs by request."""
    numbers: dict[tuple[str | None, str | None], int] = {}
    keys = [(request.model, request.tenant) for request in requests]
    for index, key in (changed or {}).items():
        keys[index] = key
    return [numbers.setdefault(key, len(numbers)) for key in keys]


@dataclass(frozen=True, slots=True)
class Rates:
    """What tokens cost. usd: per million prompt tokens, (uncached, cached). flops: FLOP/s of the machine."""

    usd: tuple[float, float] | None = None
    prefill: Prefill | None = None
    flops: float = SUSTAINED

    def dollars(self, lost: int) -> float | None:
        """What `lost` tokens cost more than cached ones; None where no price is known."""
        return None if self.usd is None else round(lost * (self.usd[0] - self.usd[1]) / 1e6, 6)

    def seconds(self, before: NDArray[np.int64], after: NDArray[np.int64]) -> float | None:
        """Prefill time of the tokens that are computed where `before` of each prompt are reusable, and not
        where `after` are (int64 [r]), each at its depth; None where no model is known."""
        if self.prefill is None:
            return None
        saved = self.prefill.cost(after) - self.prefill.cost(before)
        return round(max(float(saved.sum()), 0.0) / self.flops, 6)


def replayed(
    requests: Sequence[Request], order: Sequence[int], encoder: PromptEncoder, block_size: int
) -> HitRates:
    """Hit rates of `requests` as they stand, in the given order of arrival."""
    return replay_ids(encoder.encode(requests), block_size, spaces(requests), order=order)
