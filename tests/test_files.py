"""Files are whole or absent."""

import os
from pathlib import Path

import pytest

from kvtool.errors import KvtoolError
from kvtool.files import check_targets, whole, write_whole


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_whole(target, "old")
    with pytest.raises(RuntimeError), whole(target) as temporary:
        temporary.write_text("half of the n")
        raise RuntimeError
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_clean_write_replaces_and_sets_the_mode(tmp_path: Path) -> None:
    target = tmp_path / "key.bin"
    target.write_bytes(b"old")
    write_whole(target, b"new", mode=0o600)
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["key.bin"]


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o027, 0o640), (0o022, 0o644)])
def test_the_umask_is_honoured(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "report.html", "what many sent")
    finally:
        os.umask(before)
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == mode


def test_an_input_is_never_a_target_also_not_through_links(tmp_path: Path) -> None:
    log, other = tmp_path / "log", tmp_path / "other"
    log.write_text("rows")
    (tmp_path / "soft").symlink_to(log)
    (tmp_path / "hard").hardlink_to(log)
    for target in (log, tmp_path / "soft", tmp_path / "hard", tmp_path / "." / "log"):
        with pytest.raises(KvtoolError, match="is an input"):
            check_targets([str(other), log], None, target)
    check_targets(["-", log, tmp_path / "missing"], None, other)


def test_a_file_that_cannot_be_written_is_the_users_error(tmp_path: Path) -> None:
    for write in (lambda path: write_whole(path, "text"), lambda path: check_targets([], path)):
        with pytest.raises(KvtoolError, match=r"no/x\.json: no such folder .*no \("):
            write(tmp_path / "no" / "x.json")
    target = tmp_path / "full.json"
    with pytest.raises(KvtoolError, match=r"full\.json: No space left"), whole(target) as temporary:
        temporary.write_text("half")
        raise OSError(28, "No space left on device", str(temporary))
    with pytest.raises(FileNotFoundError), whole(target):
        (tmp_path / "another").read_text()
    assert list(tmp_path.iterdir()) == []
