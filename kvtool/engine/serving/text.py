"""Token ids -> text as it comes: whole characters only, and nothing that may become a stop string."""

from collections.abc import Sequence

from kvtool.tokens import Tokenizer

REPLACEMENT = "\ufffd"
UNFINISHED = 3
"""Most bytes of a character that is not complete yet; each may show as one replacement character."""

WINDOW = 24
"""Tokens decoded again with each new one: decoders look at neighbours (leading spaces, byte runs)."""


class Detokenizer:
    """Incremental `tokenizer.decode`: the pieces joined are the text of all ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._given = ""

    def push(self, token: int) -> str:
        """The text that `token` completes; "" while a character is incomplete."""
        self._window.append(token)
        text = self._tokenizer.decode(self._window)
        held = len(text) - len(text.rstrip(REPLACEMENT))
        piece = self._piece(text[: len(text) - min(held, UNFINISHED)])
        if len(self._window) > WINDOW and not held:
            self._window = self._window[WINDOW // 2 :]
            self._given = self._tokenizer.decode(self._window)
        return piece

    def finish(self) -> str:
        """What is still held: the replacement characters of bytes that never became a character."""
        return self._piece(self._tokenizer.decode(self._window))

    def _piece(self, text: str) -> str:
        if len(text) <= len(self._given):
            return ""
        piece = text[len(self._given) :]
        self._given = text
        return piece


class StopFilter:
    """Passes text on until the first of `stops`; holds back an end that may be a stop's beginning."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped: str | None = None

    def push(self, piece: str) -> str:
        """The part of the text so far that is certain. After a stop string nothing comes any more."""
        if self.stopped is not None:
            return ""
        text = self._held + piece
        found = [(text.find(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if found:
            at, _, self.stopped = min(found)
            self._held = ""
            return text[:at]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held and became no stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if stop.startswith(text[len(text) - length :]):
            return length
    return 0
