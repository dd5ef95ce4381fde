"""Streams without a GPU: each does its work in order, and between them anything may come first."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any


class Sim:
    """Streams that advance when they like: work of each in its order, behind the events it waits for."""

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.queues: list[deque[tuple[Callable[[], None], Sequence[Any], SimEvent]]] = []

    def tick(self) -> bool:
        """One step of a stream that can move."""
        able = [queue for queue in self.queues if queue and all(event.query() for event in queue[0][1])]
        if not able:
            return False
        work, _, event = self.choose.choice(able).popleft()
        work()
        event.done = True
        return True


class SimEvent:
    def __init__(self, sim: Sim) -> None:
        self.sim = sim
        self.done = False

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        while not self.done:
            assert self.sim.tick(), "a deadlock"

    wait = synchronize  # the test's own reads are the compute: they happen when they are called


class SimLane:
    def __init__(self, sim: Sim) -> None:
        self.sim = sim
        self.queue: deque[Any] = deque()
        sim.queues.append(self.queue)
        self.last = SimEvent(sim)
        self.last.done = True

    def run(self, work: Callable[[], None], after: Sequence[Any] = (), uses: Sequence[Any] = ()) -> SimEvent:
        self.last = SimEvent(self.sim)
        self.queue.append((work, list(after), self.last))
        return self.last
