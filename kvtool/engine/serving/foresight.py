"""What sessions will ask next: the outlook learned from a log, applied to requests as they come and go."""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

from kvtool.blocks import BlockHash
from kvtool.cache.index import BlockIndex
from kvtool.engine.serving.prefetch import Prefetch
from kvtool.engine.storage.outlook import Outlook

Session = tuple[BlockHash, str]
"""The root of a tenant's chains, and the name that the client gave."""

MOST_SESSIONS = 10_000
"""Sessions that are thought of at a time; the one that has waited longest is forgotten."""


@dataclass(slots=True, eq=False)
class _Next:
    """chain: hash of the last block to fetch; None until the session's own prompt has its answer."""

    due: float
    until: float
    chain: BlockHash | None


class Foresight:
    """Fetches what a session will probably ask next, shortly before it does. Without `outlook` nothing."""

    def __init__(
        self,
        outlook: Outlook | None,
        index: BlockIndex,
        chain_to: Callable[[BlockHash], list[int]],
        prefetch: Prefetch,
    ) -> None:
        self._outlook = outlook if prefetch.able else None
        self._index = index
        self._chain_to = chain_to
        self._prefetch = prefetch
        self._next: dict[Session, _Next] = {}
        self._due: list[tuple[float, int, Session, _Next]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._next)

    def started(self, session: Session, nodes: list[int], now: float) -> None:
        """A request of the session has got its blocks: what was thought to come is here, or was wrong."""
        if self._outlook is None:
            return
        self.forget(session)
        expected = self._outlook.after(map(self._index.hash_of, nodes))
        if expected is None:
            return
        if len(self._next) >= MOST_SESSIONS:
            self.forget(next(iter(self._next)))
        coming = _Next(now + expected.after, now + expected.until, expected.chain)
        self._next[session] = coming
        self._count += 1
        heappush(self._due, (coming.due, self._count, session, coming))

    def ended(self, session: Session, leaf: int) -> None:
        """The session's request has its answer; `leaf` is the last block of both."""
        coming = self._next.get(session)
        if coming is not None and coming.chain is None:
            coming.chain = self._index.hash_of(leaf)

    def forget(self, session: Session) -> None:
        """Expect nothing of the session, and let go of what was fetched for it."""
        self._next.pop(session, None)
        self._prefetch.end(session)

    def poll(self, now: float) -> None:
        """Fetch what is due."""
        while self._due and self._due[0][0] <= now:
            _, _, session, coming = heappop(self._due)
            if self._next.get(session) is not coming:
                continue
            del self._next[session]
            if coming.chain is None:  # the request still runs: its blocks are on the device
                continue
            nodes = self._chain_to(coming.chain)
            if nodes:
                self._prefetch.begin(session, nodes, "foreseen", now, coming.until)
