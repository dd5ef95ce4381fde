"""Soft pins: prefixes kept on the device for a time, as long as live traffic does not need their room."""

from dataclasses import dataclass

from kvtool.cache.tiers import TieredLease, TieredPool


@dataclass(slots=True)
class _Pin:
    lease: TieredLease
    until: float
    blocks: int


class Pins:
    """At most `share` of the device pool; the pin that ends first gives way."""

    def __init__(self, pool: TieredPool, share: float = 0.5) -> None:
        self._pool = pool
        self._most = int(pool.device.capacity * share)
        self._pins: list[_Pin] = []

    def __len__(self) -> int:
        return len(self._pins)

    def hold(self, nodes: list[int], seconds: float, now: float) -> int:
        """Hold the longest prefix of `nodes` that is on the device and within the cap. Returns its blocks."""
        room = self._most - sum(pin.blocks for pin in self._pins)
        blocks = min(self._pool.device.match(nodes), max(room, 0))
        if not blocks:
            return 0
        lease = self._pool.acquire(nodes[:blocks], blocks, now, most=blocks)
        assert lease is not None and lease.hit == blocks
        self._pins.append(_Pin(lease, now + seconds, blocks))
        return blocks

    def expire(self, now: float) -> None:
        """Let go of pins whose time is over."""
        for pin in [pin for pin in self._pins if pin.until <= now]:
            self._let_go(pin)

    def give_way(self) -> bool:
        """Let go of the pin that would end first; False if there is none."""
        if not self._pins:
            return False
        self._let_go(min(self._pins, key=lambda pin: pin.until))
        return True

    def clear(self) -> None:
        """Let go of all."""
        while self.give_way():
            pass

    def _let_go(self, pin: _Pin) -> None:
        self._pins.remove(pin)
        self._pool.release(pin.lease)
