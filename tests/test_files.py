"""Files are whole or absent."""

from pathlib import Path

import pytest

from kvtool.files import whole, write_whole


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
