"""Work ahead: a thread makes the items of an iterator while the caller deals with earlier ones."""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from threading import Condition, Thread
from typing import Generic, TypeVar

Item = TypeVar("Item")


def ahead(items: Iterator[Item], limit: int, size: Callable[[Item], int]) -> Generator[Item, None, None]:
    """`items` in their order. What waits to be taken has about `limit` of `size` at most, bytes for instance.

    An error in `items` is raised here after all that came before it. Closing the iterator stops the
    thread before its next item and waits for it.
    """
    belt = _Belt(items, limit, size)
    thread = Thread(target=belt.make, name="kvtool-ahead", daemon=True)
    thread.start()
    try:
        while (taken := belt.take()) is not None:
            yield taken[0]
    finally:
        belt.stop()
        thread.join()


class _Belt(Generic[Item]):
    """What both threads share."""

    def __init__(self, items: Iterator[Item], limit: int, size: Callable[[Item], int]) -> None:
        self._items = items
        self._limit = limit
        self._size = size
        self._waiting: deque[Item] = deque()
        self._weight = 0
        self._ended = self._stopped = False
        self._error: BaseException | None = None
        self._changed = Condition()

    def make(self) -> None:
        """The thread: one item after the other, as long as there is room."""
        try:
            for item in self._items:
                with self._changed:
                    self._waiting.append(item)
                    self._weight += self._size(item)
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._weight < self._limit or self._stopped)
                    if self._stopped:
                        return
        except BaseException as error:
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def take(self) -> tuple[Item] | None:
        """The next item, None behind the last one; raises what the iterator raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            if self._waiting:
                item = self._waiting.popleft()
                self._weight -= self._size(item)
                self._changed.notify_all()
                return (item,)
        if self._error is not None:
            raise self._error
        return None

    def stop(self) -> None:
        """Make nothing more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
