"""Streams for copies beside the compute. A lane does its work in order; events order it with other lanes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from kvtool.engine.compute.arrivals import Event


class Lane(Protocol):
    """A queue of copies."""

    def run(
        self, work: Callable[[], None], after: Sequence[Event] = (), uses: Sequence[Tensor] = ()
    ) -> Event:
        """Queue `work` behind `after`; the event says when it is done. `uses`: what others have allocated."""
        ...


class StreamLane:
    """A CUDA stream."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def run(
        self, work: Callable[[], None], after: Sequence[Event] = (), uses: Sequence[Tensor] = ()
    ) -> Event:
        """As of a `Lane`."""
        with torch.cuda.stream(self._stream):
            for event in after:
                event.wait()
            work()
            for tensor in uses:
                tensor.record_stream(self._stream)
            return now()


def now() -> Event:
    """A point in the current stream."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event


def use_here(tensor: Tensor) -> None:
    """Whatever stream has made it, its memory is not used again before the current one is done with it."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


class Over:
    """An event that has been."""

    def query(self) -> bool:
        """It has."""
        return True

    def wait(self) -> None:
        """There is nothing to wait for."""

    def synchronize(self) -> None:
        """There is nothing to wait for."""


class Inline:
    """A lane without a GPU: work is done at once."""

    def run(
        self, work: Callable[[], None], after: Sequence[Event] = (), uses: Sequence[Tensor] = ()
    ) -> Event:
        """As of a `Lane`."""
        work()
        return Over()


@dataclass(frozen=True, slots=True)
class Lanes:
    """out: from the device. back: to it, meanwhile: the bus goes both ways. mark: where the compute is."""

    out: Lane
    back: Lane
    mark: Callable[[], Event]


@cache
def lanes_of(device: torch.device) -> Lanes:
    """A GPU's own streams, or none."""
    if device.type == "cuda":
        return Lanes(StreamLane(device), StreamLane(device), now)
    return Lanes(Inline(), Inline(), Over)


class LastUse:
    """When slots were used last, as far as that is not over."""

    def __init__(self) -> None:
        self._events: dict[int, Event] = {}

    def note(self, slots: Sequence[int], event: Event) -> None:
        """`slots` are in use until `event`."""
        self._events = {slot: last for slot, last in self._events.items() if not last.query()}
        self._events.update(dict.fromkeys(slots, event))

    def of(self, slots: Sequence[int]) -> list[Event]:
        """What to wait for before `slots` are used otherwise."""
        return list({id(event): event for slot in slots if (event := self._events.get(slot))}.values())
