"""How long computing and loading take here, measured as it goes: load or compute, and how long to wait."""

from collections.abc import Sequence

from kvtool.cache.tiers import Tier

WEIGHT = 0.2
"""Share of the newest measurement in the running mean."""

MEASURED_TOKENS = 32
"""Forwards of fewer tokens say little about prefill."""

PATIENCE = 5.0
"""Seconds that a load gets while nothing has been measured."""

LEAST = 0.1
"""Seconds that a load gets in any case: less is noise."""

TRY_AGAIN = 64
"""Every so many refusals a load is tried anyway: a disk that was slow need not stay so."""


class Rates:
    """Running means. Times are in seconds."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._token: float | None = None
        self._block: dict[Tier, float] = {}
        self._refused = 0

    def computed(self, tokens: int, seconds: float) -> None:
        """A forward of `tokens` tokens took `seconds`."""
        if tokens >= MEASURED_TOKENS:
            self._token = _mean(self._token, seconds / tokens)

    def loaded(self, tiers: Sequence[Tier], seconds: float) -> None:
        """Reading blocks of these tiers took `seconds` in all; memory costs nothing beside a disk."""
        slow = [tier for tier in tiers if tier > Tier.HOST] or list(tiers)
        for tier in set(slow):
            self._block[tier] = _mean(self._block.get(tier), seconds / len(slow))

    def worth_loading(self, tiers: Sequence[Tier]) -> int:
        """How many of these leading blocks to use: all, or none on disk where computing is faster."""
        below = [tier for tier in tiers if tier > Tier.DEVICE]
        if self._token is None:
            return len(tiers)
        loading = sum(self._block.get(tier, 0.0) for tier in below)
        if loading <= len(below) * self._size * self._token:
            return len(tiers)
        self._refused += 1
        if self._refused % TRY_AGAIN == 0:
            return len(tiers)
        return next((at for at, tier in enumerate(tiers) if tier > Tier.HOST), len(tiers))

    def patience(self, blocks: int) -> float:
        """Seconds after which a load of `blocks` blocks is given up: computing them would be done by then."""
        if self._token is None:
            return PATIENCE
        return max(LEAST, blocks * self._size * self._token)


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + WEIGHT * (new - old)
