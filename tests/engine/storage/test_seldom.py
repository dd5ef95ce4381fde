"""A flood of warnings is two lines, and their count is right whichever thread each came from."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from kvtool.engine.storage import seldom
from kvtool.engine.storage.seldom import Seldom


def test_a_flood_is_its_first_line_and_a_count(caplog: pytest.LogCaptureFixture) -> None:
    warning = Seldom("bad block")
    with ThreadPoolExecutor(8) as readers:
        list(readers.map(warning.warn, [f"block {number}" for number in range(1000)]))
    (line,) = caplog.messages
    assert line.startswith("bad block: block ")
    warning.flush()
    assert caplog.messages[1].startswith("bad block: 999 more times, the last: block ")
    warning.flush()
    assert len(caplog.messages) == 2
    warning.warn("block 7")
    assert caplog.messages[2:] == ["bad block: block 7"]
    warning.flush()
    assert len(caplog.messages) == 3, "what was logged is not counted again"


def test_the_count_comes_by_itself(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[tuple[float, Callable[[], None]]] = []

    def timer(seconds: float, then: Callable[[], None]) -> SimpleNamespace:
        timers.append((seconds, then))
        return SimpleNamespace(start=lambda: None, cancel=lambda: None)

    monkeypatch.setattr(seldom, "Timer", timer)
    warning = Seldom("bad block")
    for number in range(3):
        warning.warn(f"block {number}")
    ((seconds, then),) = timers
    then()
    assert seconds == 60
    assert caplog.messages == ["bad block: block 0", "bad block: 2 more times, the last: block 2"]
