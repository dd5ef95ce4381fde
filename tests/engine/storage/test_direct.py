"""Files past the page cache, runs of neighbouring blocks, and pieces of staging memory."""

import errno
import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtool.engine.storage import direct, staging
from kvtool.engine.storage.codecs.raw import Raw
from kvtool.engine.storage.coded import Encoded
from kvtool.engine.storage.direct import DIRECT, PAGE, Came, File
from kvtool.engine.storage.runs import GAP, Run, Wanted, alone, joined
from kvtool.engine.storage.staging import StagingArea


def pages(count: int) -> memoryview:
    return memoryview(mmap.mmap(-1, count * PAGE))


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("length", [0, 1, PAGE, 3 * PAGE - 1, 9 * PAGE + 513])
def test_what_is_read_is_what_the_file_has_from_there(tmp_path: Path, past: bool, length: int) -> None:
    data = os.urandom(length)
    (tmp_path / "f").write_bytes(data)
    file = File(tmp_path / "f", past)
    for offset in (0, PAGE, 2 * PAGE):
        assert file.read(pages(4), offset) == data[offset : offset + 4 * PAGE]
    assert file.read(memoryview(bytearray(10)), 3) == data[3:13], "not in pages: through the cache"
    assert file.refused == 0 or past
    file.close()
    assert file.read(pages(1), 0) == data[:PAGE], "opened again"
    file.close()


def test_a_direct_read_sees_what_was_just_written(tmp_path: Path) -> None:
    """As the write-back area does it: written through the cache, not synced."""
    (tmp_path / "f").write_bytes(bytes(2 * PAGE))
    file = File(tmp_path / "f", True)
    assert file.read(pages(2), 0) == bytes(2 * PAGE)
    with (tmp_path / "f").open("r+b", buffering=0) as handle:
        handle.seek(PAGE - 5)
        handle.write(b"0123456789")
    assert file.read(pages(2), 0) == bytes(PAGE - 5) + b"0123456789" + bytes(PAGE - 5)
    file.close()


@pytest.mark.skipif(not DIRECT, reason="a system without O_DIRECT")
@pytest.mark.parametrize("where", ["open", "preadv"])
def test_a_file_system_that_refuses_is_read_through_the_cache_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    asked: list[str] = []
    opened: set[int] = set()
    real_open, real_read = os.open, os.preadv

    def open_(path: Any, flags: int, *rest: Any) -> int:
        if flags & DIRECT and where == "open":
            asked.append("open")
            raise OSError(errno.EINVAL, "Invalid argument")
        descriptor = real_open(path, flags, *rest)
        if flags & DIRECT:
            opened.add(descriptor)
        return descriptor

    def preadv(descriptor: int, buffers: Any, offset: int) -> int:
        if descriptor in opened:
            asked.append("preadv")
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_read(descriptor, buffers, offset)

    monkeypatch.setattr(direct.os, "open", open_)
    monkeypatch.setattr(direct.os, "preadv", preadv)
    data = os.urandom(5 * PAGE)
    (tmp_path / "f").write_bytes(data)
    file = File(tmp_path / "f", True)
    for _ in range(3):
        assert file.read(pages(2), PAGE) == data[PAGE : 3 * PAGE]
    assert file.refused == 3 and asked == [where], "it is asked once"
    file.close()


def test_a_disk_that_fails_is_an_answer_and_no_fallback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = File(tmp_path / "none", True).read(pages(1), 0)
    assert isinstance(missing, FileNotFoundError)
    (tmp_path / "f").write_bytes(bytes(PAGE))
    file = File(tmp_path / "f", True)

    def broken(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(direct.os, "preadv", broken)
    came = file.read(pages(1), 0)
    assert isinstance(came, OSError) and came.errno == errno.EIO and file.refused == 0
    file.close()


@pytest.mark.parametrize("past", [False, True])
def test_a_read_that_comes_in_parts_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, past: bool
) -> None:
    real = os.preadv
    data = os.urandom(6 * PAGE + 700)
    (tmp_path / "f").write_bytes(data)
    file = File(tmp_path / "f", past)
    monkeypatch.setattr(direct.os, "preadv", lambda fd, into, at: real(fd, [into[0][: 2 * PAGE]], at))
    assert file.read(pages(8), 0) == data
    file.close()


def unproven(came: Came) -> Encoded | None:
    return None if isinstance(came, OSError) else Encoded(Raw(), bytes(came), False)


@given(
    blocks=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 400), st.integers(1, 7_000)),
        min_size=1,
        max_size=30,
        unique_by=lambda block: block[:2],
    ),
    most=st.integers(1, 12),
)
def test_runs_are_whole_pages_that_hold_every_block_once(
    blocks: list[tuple[int, int, int]], most: int
) -> None:
    files = [File(Path(f"{number}")) for number in range(3)]
    wanted = [
        Wanted(place, files[number], at * 7_000, size, unproven)
        for place, (number, at, size) in enumerate(blocks)
    ]
    runs = joined(wanted, most * 16_384)
    assert sorted(block.place for run in runs for block in run.blocks) == list(range(len(wanted)))
    firsts = [min(block.place for block in run.blocks) for run in runs]
    assert firsts == sorted(firsts), "first what is needed first"
    for run in runs:
        assert run.start % PAGE == run.end % PAGE == 0
        assert run.start <= run.blocks[0].offset < run.start + PAGE
        assert run.end - PAGE < run.blocks[-1].end <= run.end
        assert run.size <= most * 16_384 or len(run.blocks) == 1
        for before, after in pairwise(run.blocks):
            assert before.file is after.file and 0 <= after.offset - before.end <= GAP
    by_place = sorted(runs, key=lambda run: (str(run.blocks[0].file.path), run.blocks[0].offset))
    for run, after in pairwise(by_place):
        first = after.blocks[0]
        gap = first.offset - run.blocks[-1].end
        whole = -(-first.end // PAGE) * PAGE - run.start
        apart = first.file is not run.blocks[0].file or not 0 <= gap <= GAP
        assert apart or whole > most * 16_384, "these could have been one"


def test_a_run_gives_each_block_its_bytes_and_none_more(tmp_path: Path) -> None:
    data = os.urandom(3 * PAGE)
    (tmp_path / "f").write_bytes(data)
    file = File(tmp_path / "f")
    places = [(10, 4_000), (4_010, 50), (5_000, 7_000), (12_000, 4_000)]  # the last is cut off
    wanted = [Wanted(place, file, *where, unproven) for place, where in enumerate(places)]
    (run,) = joined(wanted, 1 << 20)
    for way in ([run], alone(wanted)):
        found = [pair for each in way for pair in each.read(pages(8)[: each.size])]
        assert [block.place for block, _ in found] == [0, 1, 2, 3]
        for block, came in found:
            assert came is not None and came.data == data[block.offset : block.end]
    file.close()
    gone = File(tmp_path / "gone")
    lost = Run([Wanted(0, gone, 0, 5, unproven)], 0, PAGE)
    assert [came for _, came in lost.read(pages(1))] == [None]


class Slow:
    """A copy that is over when the test says so."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def query(self) -> bool:
        return self.over.is_set()

    def synchronize(self) -> None:
        assert self.over.wait(60)

    wait = synchronize


@pytest.fixture
def area(monkeypatch: pytest.MonkeyPatch) -> StagingArea:
    monkeypatch.setattr(staging, "PIECE", 2 * PAGE)
    monkeypatch.setattr(staging, "TOTAL", 6 * PAGE)
    monkeypatch.setattr(staging, "FEWEST", 2)
    return StagingArea(PAGE, False)


def never() -> bool:
    return False


def test_pieces_are_pages_apart_and_hold_the_longest_block_wherever_it_begins(area: StagingArea) -> None:
    held = [area.take(never) for _ in range(3)]
    assert sorted(map(int, filter(lambda piece: piece is not None, held))) == [0, 1, 2]  # type: ignore[arg-type]
    for piece in (0, 1, 2):
        area.bytes_of(piece)[:] = bytes([piece]) * area.size
    assert area.memory.view(3, -1)[:, ::PAGE].tolist() == [[0, 0], [1, 1], [2, 2]]
    for size in (1, PAGE, PAGE + 1, 5 * PAGE - 1):
        room = StagingArea(size, False).size
        for offset in (0, 1, PAGE - 1):
            (run,) = joined([Wanted(0, File(Path("f")), offset, size, unproven)], 1)
            assert run.size <= room


def test_a_piece_is_taken_again_only_when_the_copy_out_of_it_is_over(area: StagingArea) -> None:
    for _ in range(3):
        area.take(never)
    copy, other = Slow(), Slow()
    with ThreadPoolExecutor(1) as reader:
        waiting = reader.submit(area.take, never)
        area.give_back(1, [copy, other])
        copy.over.set()
        assert not waiting.done(), "one of two copies is still reading it"
        other.over.set()
        assert waiting.result(60) == 1
        waiting = reader.submit(area.take, never)
        area.give_back(0)
        assert waiting.result(60) == 0, "nothing was copied out of it"


def test_whoever_has_given_up_does_not_wait_for_a_piece(area: StagingArea) -> None:
    for _ in range(3):
        area.take(never)
    over = threading.Event()
    with ThreadPoolExecutor(2) as readers:
        mine = readers.submit(area.take, over.is_set)
        other = readers.submit(area.take, never)
        over.set()
        area.look()
        assert mine.result(60) is None and not other.done()
        area.close()
        assert other.result(60) is None
