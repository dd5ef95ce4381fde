"""Warnings that may come in floods: the first at once, how many others there were a minute later."""

import logging
from threading import Lock, Timer

log = logging.getLogger("kvtool.serve")

QUIET = 60.0
"""Seconds after a warning for which the same one is only counted."""


class Seldom:
    """Warnings of one kind, from any thread. `what` has happened; each time for a reason of its own."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = Lock()
        self._quiet: Timer | None = None
        self._more = 0
        self._last = ""

    def warn(self, reason: str) -> None:
        """Log it, or count it."""
        with self._lock:
            if self._quiet is not None:
                self._more += 1
                self._last = reason
                return
            log.warning("%s: %s", self._what, reason)
            self._quiet = Timer(QUIET, self.flush)
            self._quiet.daemon = True
            self._quiet.start()

    def flush(self) -> None:
        """Say how many were only counted; the next one is logged again."""
        with self._lock:
            if self._quiet is not None:
                self._quiet.cancel()
                self._quiet = None
            if self._more:
                log.warning("%s: %d more times, the last: %s", self._what, self._more, self._last)
                self._more = 0
