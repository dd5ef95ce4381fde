"""Soft pins: prefixes kept on the device for a time, as long as live traffic does not need their room."""

from collections.abc import Hashable
from dataclasses import dataclass

from kvtool.cache.tiers import TieredPool


@dataclass(slots=True, eq=False)
class _Pin:
    nodes: list[int]
    until: float
    key: Hashable


class Pins:
    """At most `share` of the device pool; the pin that ends first gives way."""

    def __init__(self, pool: TieredPool, share: float = 0.5) -> None:
        self._pool = pool
        self._most = int(pool.device.capacity * share)
        self._pins: list[_Pin] = []

    def __len__(self) -> int:
        return len(self._pins)

    def hold(self, nodes: list[int], seconds: float, now: float, key: Hashable = None) -> int:
        """Hold the longest prefix of `nodes` that is on the device and within the cap. Returns its blocks.

        It counts as no use. A pin under the same key, if that is not None, is replaced.
        """
        self.let_go(key)
        room = self._most - sum(len(pin.nodes) for pin in self._pins)
        held = nodes[: min(self._pool.device.match(nodes), max(room, 0))]
        if held:
            self._pool.device.pin(held)
            self._pins.append(_Pin(held, now + seconds, key))
        return len(held)

    def let_go(self, key: Hashable) -> None:
        """End the pin under a key."""
        for pin in [pin for pin in self._pins if key is not None and pin.key == key]:
            self._end(pin)

    def expire(self, now: float) -> None:
        """Let go of pins whose time is over."""
        for pin in [pin for pin in self._pins if pin.until <= now]:
            self._end(pin)

    def give_way(self) -> bool:
        """Let go of the pin that would end first; False if there is none."""
        if not self._pins:
            return False
        self._end(min(self._pins, key=lambda pin: pin.until))
        return True

    def clear(self) -> None:
        """Let go of all."""
        while self.give_way():
            pass

    def _end(self, pin: _Pin) -> None:
        self._pins.remove(pin)
        self._pool.device.unpin(pin.nodes)
