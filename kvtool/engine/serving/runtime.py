"""The scheduler's thread: the only one that touches pool, index, store and model."""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

from kvtool.engine.serving.generation import Delta, Generation
from kvtool.engine.serving.scheduler import Scheduler

log = logging.getLogger("kvtool.serve")

T = TypeVar("T")

WAIT, LOADING = 1.0, 0.002
"""Seconds between two looks at an idle scheduler: for pins that end, and for blocks being read."""


class QueueFull(Exception):
    """No room to wait. `retry_after`: seconds after which there may be."""

    def __init__(self, retry_after: int) -> None:
        super().__init__("the queue is full")
        self.retry_after = retry_after


class TooMany(Exception):
    """More at once than the server ever takes of one tenant. `most`: what it takes."""

    def __init__(self, most: int) -> None:
        super().__init__("more than fit in the queue")
        self.most = most


class Unavailable(Exception):
    """The server is shutting down, or its engine has failed."""


class Observer(Protocol):
    """Is told about latencies, in seconds, in the scheduler's thread; what is refused in the caller's."""

    def refused(self) -> None:
        """A request that found no place."""
        ...

    def first_token(self, seconds: float, request: Generation) -> None:
        """From submission to the first chosen token."""
        ...

    def next_token(self, seconds: float) -> None:
        """Between two chosen tokens of one answer."""
        ...

    def finished(self, seconds: float, request: Generation) -> None:
        """From submission to the end."""
        ...


class Runtime:
    """Runs a scheduler until `close`. Thread-safe. At most `most_requests` are inside at a time.

    shared: there are several tenants. Then one has at most half of the places that the others leave, so
    that it does not keep them out.
    """

    shared = False

    def __init__(
        self,
        scheduler: Scheduler,
        most_requests: int,
        idle: Callable[[], float],
        after: Callable[[], None],
        observer: Observer,
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        """begin: called first, in the scheduler's thread. idle: does a little background work when there is
        nothing to run, and says in how many seconds there may be more. after: called after every step and
        what was done between two of them."""
        self._scheduler = scheduler
        self._most = most_requests
        self._idle = idle
        self._after = after
        self._observer = observer
        self._begin = begin
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._inside = 0
        self._of_tenant: Counter[str] = Counter()
        self._seconds = 1.0
        self._closing = False
        self._until = math.inf
        self.begun = threading.Event()
        """Set when requests are served from now on, or never will be."""
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="kvtool-scheduler", daemon=True)
        self._thread.start()

    @property
    def healthy(self) -> bool:
        """Whether requests are taken."""
        return not self._closing and not self._failed and self._thread.is_alive()

    @property
    def inside(self) -> int:
        """Requests that are running or waiting."""
        return self._inside

    def drain(self, seconds: float) -> None:
        """The server is told to stop: what is inside has so long, streams without an end of their own end."""
        self._until = time.monotonic() + seconds

    @property
    def draining(self) -> bool:
        """Whether the server was told to stop."""
        return self._until < math.inf

    @property
    def left(self) -> float:
        """Seconds until the drain ends, infinite where none has begun."""
        return max(0.0, self._until - time.monotonic())

    def submit(self, requests: Sequence[Generation]) -> None:
        """Queue all of `requests`, one tenant's, or none. Raises TooMany, QueueFull or Unavailable."""
        tenant = requests[0].tenant
        if len(requests) > (most := self._places(self._most)):
            raise TooMany(most)
        with self._lock:
            if not self.healthy:
                raise Unavailable("the server is shutting down" if self._closing else "the engine has failed")
            own = self._of_tenant[tenant]
            if own + len(requests) > self._places(self._most - (self._inside - own)):
                self._observer.refused()
                waves = self._inside / self._most
                raise QueueFull(max(1, min(60, round(self._seconds * waves))))
            self._inside += len(requests)
            self._of_tenant[tenant] += len(requests)
            for request in requests:
                self._watch(request)
                self._inbox.put(partial(self._scheduler.submit, request))

    def _places(self, left: int) -> int:
        """How many of the places that others leave one tenant may have."""
        return -(-left // 2) if self.shared else left

    def cancel(self, request: Generation) -> None:
        """The client has left; its slots are freed before the next step."""
        self._inbox.put(partial(self._scheduler.cancel, request))

    def call(self, function: Callable[[Scheduler], T]) -> "Future[T]":
        """Run `function` between two steps."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function(self._scheduler))
            except Exception as error:  # belongs to the caller, who gets it from the future
                future.set_exception(error)

        if not self._thread.is_alive():
            future.set_exception(Unavailable("the engine has stopped"))
        else:
            self._inbox.put(run)
        return future

    def close(self, wait: float) -> None:
        """Take no more requests, give those inside `wait` seconds, cancel the rest and end the thread."""
        with self._lock:
            self._closing = True
        deadline = time.monotonic() + wait
        while self._inside and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        self.end()
        self._thread.join()

    def end(self) -> None:
        """Take no more requests and cancel those inside."""
        with self._lock:
            self._closing = True
        self._inbox.put(self._cancel_all)

    def _cancel_all(self) -> None:
        for request in [*self._scheduler.running, *self._scheduler.waiting]:
            self._scheduler.cancel(request)

    def _watch(self, request: Generation) -> None:
        """Measure a request and count it out when it ends."""
        emit = request.emit
        start = time.monotonic()
        last = start
        chosen = 0

        def watched(delta: Delta) -> None:
            nonlocal last, chosen
            now = time.monotonic()
            count = len(request.tokens) - len(request.prompt)
            if count and not chosen:
                self._observer.first_token(now - start, request)
            for _ in range(count - chosen if chosen else 0):  # several when they make one character
                self._observer.next_token((now - last) / (count - chosen))
            last, chosen = now, count
            if delta.finish is not None:
                self._observer.finished(now - start, request)
                with self._lock:
                    self._inside -= 1
                    self._of_tenant[request.tenant] -= 1
                    self._seconds += 0.2 * (now - start - self._seconds)
            emit(delta)

        request.emit = watched

    def _run(self) -> None:
        try:
            self._begin()
            self.begun.set()
            while True:
                self._serve_inbox()
                if self._closing and not self._inside and self._inbox.empty():
                    return
                pause = 0.0 if self._scheduler.step() else self._idle()
                self._after()
                if pause:
                    self._serve_inbox(wait=min(pause, LOADING if self._scheduler.reading else WAIT))
        except Exception:  # the thread's end: whoever waits must be told, whatever it was
            log.exception("the engine failed; every request is ended")
        finally:
            self.begun.set()
            with self._lock:
                self._failed = not self._closing
            self._scheduler.fail_all()
            while not self._inbox.empty():
                self._serve_inbox()
                self._scheduler.fail_all()

    def _serve_inbox(self, wait: float | None = None) -> None:
        try:
            self._inbox.get(block=wait is not None, timeout=wait)()
            while True:
                self._inbox.get_nowait()()
        except Empty:
            return
