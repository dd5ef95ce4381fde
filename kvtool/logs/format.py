"""What a log format is: a claim on rows, and the requests of a row."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from kvtool.requests import Request, Source


class BadRow(Exception):
    """A row that holds no readable request. The message is the reason under which rows are counted,
    so it names the field but no values."""


class Format:
    """One log format. A fresh object reads each file, so it may keep what later rows refer to.

    `rank` decides between formats that claim the same rows: the more particular one is higher.
    `looks_ahead` is how many rows `prepare` wants to see. `omits` says what of the prompt's head logs of
    this format never record (empty: nothing). `nothing` is what to say of a file without a request.
    """

    name: ClassVar[str]
    rank: ClassVar[int] = 0
    omits: ClassVar[str] = ""
    looks_ahead: ClassVar[int] = 0
    nothing: ClassVar[str] = "its rows hold no model calls"

    def __init__(self, shared: dict[str, Any] | None = None) -> None:
        """`shared` is one dict for all files of a log, for what one file tells about another."""
        self.notes: list[str] = []
        self.shared = {} if shared is None else shared
        self.omitted = self.omits
        self.lost: list[tuple[str, Source]] = []

    @classmethod
    def claims(cls, row: Any) -> bool:
        """Whether a decoded row looks like this format. Must not raise on any JSON value."""
        raise NotImplementedError

    @classmethod
    def order(cls, row: Any) -> int:
        """Files of a log are read in the order of this number of their first row, then as they are named."""
        return 0

    def prepare(self, head: Sequence[Any]) -> None:
        """Look at the first `looks_ahead` rows of the file before it is read."""

    def read(self, row: Any, source: Source) -> Iterator[Request]:
        """The requests of one row, in its order; none for a row that is no model call.

        Raises BadRow where the row should hold a request and does not.
        """
        raise NotImplementedError

    def finish(self) -> Iterator[Request]:
        """Requests that could only be told at the end of the file.

        May set `omitted`, and put what should have been a request into `lost` (reason, place).
        """
        return iter(())
