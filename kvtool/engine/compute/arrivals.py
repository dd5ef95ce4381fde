"""Blocks on their way into an arena, layer by layer: whoever needs a layer's waits for it, on the device.

Without a GPU nothing is ever on its way.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Event(Protocol):
    """A point in a stream, as `torch.cuda.Event`."""

    def query(self) -> bool:
        """Whether it has been reached."""
        ...

    def wait(self) -> None:
        """Let the current stream go on only from there; the host does not wait."""
        ...

    def synchronize(self) -> None:
        """Let the host wait."""
        ...


@dataclass(frozen=True, slots=True)
class Arrival:
    """`slots` are being filled; `layers`: when each layer's part is there, in their order."""

    slots: frozenset[int]
    layers: Sequence[Event]


class Arrivals:
    """All of an arena. One thread."""

    def __init__(self) -> None:
        self._coming: list[Arrival] = []

    def add(self, slots: Iterable[int], layers: Sequence[Event]) -> None:
        """`slots` are coming."""
        self._coming.append(Arrival(frozenset(slots), layers))

    def of(self, slots: Iterable[int]) -> list[Arrival]:
        """What of `slots` may not be there yet."""
        if not self._coming:
            return []
        self._coming = [each for each in self._coming if not each.layers[-1].query()]
        wanted = set(slots)
        return [each for each in self._coming if not wanted.isdisjoint(each.slots)]

    def wait(self, slots: Iterable[int]) -> None:
        """Let the device go on when all of `slots` are there."""
        for each in self.of(slots):
            each.layers[-1].wait()
