"""Compiled kernels are kept by the text of all kernels, not by that of one file, and only where whole."""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from kvtool import compiling
from kvtool.compiling import kernels_digest, njit, use_cache

CALLER = """
from kvtool import compiling
from pathlib import Path
import os
compiling.PACKAGE = Path(os.environ["ROOM"])
compiling.use_cache([Path(os.environ["ROOM"]) / "cache"])
import sys
sys.path.insert(0, os.environ["ROOM"])
from outer import doubled
print(doubled(5), sum(doubled.stats.cache_hits.values()))
"""


def run(room: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CALLER], capture_output=True, text=True, env={"ROOM": str(room)}, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """Two files, one with a kernel that the other's inlines."""
    (tmp_path / "inner.py").write_text(
        "from kvtool.compiling import njit\n\n\n@njit(cache=True)\ndef factor():\n    return 2\n"
    )
    (tmp_path / "outer.py").write_text(
        "from kvtool.compiling import njit\nfrom inner import factor\n\n\n"
        "@njit('int64(int64)', cache=True)\ndef doubled(x):\n    return x * factor()\n"
    )
    return tmp_path


def test_an_edit_of_an_inlined_function_reaches_its_callers(room: Path) -> None:
    assert run(room) == "10 0"
    assert run(room) == "10 1"
    (first,) = (room / "cache").glob("kernels-*")
    (room / "inner.py").write_text((room / "inner.py").read_text().replace("return 2", "return 3"))
    assert run(room) == "15 0"
    (second,) = (room / "cache").glob("kernels-*")
    assert first != second, "the old text's kernels are gone"
    assert list(second.rglob("*.nbi")), "the new one's are kept"


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch):
    """The folder that numba is told for some candidates."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")

    def get(*bases: Path) -> Path:
        use_cache(list(bases))
        return Path(numba.config.CACHE_DIR)

    return get


@pytest.mark.parametrize("name", ["engine/compute/cpu/vector.py", "cache/core.py", "compiling.py"])
def test_an_edit_of_any_file_with_kernels_names_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shutil.copytree(compiling.PACKAGE, tmp_path / "kvtool", ignore=shutil.ignore_patterns("__pycache__"))
    before = kernels_digest()
    monkeypatch.setattr(compiling, "PACKAGE", tmp_path / "kvtool")
    assert kernels_digest() == before
    path = tmp_path / "kvtool" / name
    path.write_text(path.read_text() + "# edited\n")
    assert kernels_digest() != before


class Bomb:
    """Makes a folder where it is unpickled."""

    folder = ""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.folder,)


DAMAGE = {
    "empty": lambda whole: b"",
    "half": lambda whole: whole[: len(whole) // 2],
    "digest alone": lambda whole: whole[-32:],
    "one byte": lambda whole: whole[:200] + bytes([whole[200] ^ 1]) + whole[201:],
    "another pickle": lambda whole: pickle.dumps(Bomb()),
}


def doubled(x: int) -> int:
    return x * 2


def kept() -> tuple[int, int]:
    """Of a kernel its result, and how often it came from a file."""
    kernel = njit("int64(int64)", cache=True)(doubled)
    return kernel(5), sum(kernel.stats.cache_hits.values())


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_a_damaged_file_is_compiled_anew_and_not_unpickled(
    tmp_path: Path, named, monkeypatch: pytest.MonkeyPatch, ending: str, damage: str
) -> None:
    monkeypatch.setattr(Bomb, "folder", str(tmp_path / "exploded"))
    folder = named(tmp_path)
    assert kept() == (10, 0)
    (path,) = folder.rglob(f"*.{ending}")
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert kept() == (10, 0)
    assert not (tmp_path / "exploded").exists()
    assert kept() == (10, 1), "it is whole again"


def test_where_there_is_no_room_a_kernel_compiles_all_the_same(room: Path) -> None:
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n{CALLER}"
    done = subprocess.run(
        [sys.executable, "-c", f"import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n{limited}"],
        capture_output=True,
        text=True,
        env={"ROOM": str(room), "KVTOOL_CACHE": str(room / "own")},
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "10 0"), done.stderr
    assert not [path for path in (room / "cache").rglob("*") if path.is_file()]


def test_kernels_are_kept_in_the_first_folder_that_can_be_written_to(tmp_path: Path, named) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    folder = named(blocked / "a", tmp_path / "b" / "c", tmp_path / "d")
    assert folder.parent == tmp_path / "b" / "c" and not (tmp_path / "d").exists()
    assert list(folder.iterdir()) == [] and folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_kernels_are_not_read_from_where_others_can_write(tmp_path: Path, named, mode: int) -> None:
    open_to_all = named(tmp_path / "a")
    open_to_all.chmod(mode)
    assert named(tmp_path / "a", tmp_path / "b").parent == tmp_path / "b"


def test_kernels_are_not_read_from_another_user_s_folder(
    tmp_path: Path, named, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert named(tmp_path / "a").parent == tmp_path / "a"
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    assert tmp_path not in named(tmp_path / "a").parents


def test_where_nothing_can_be_written_kernels_compile_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "temporary").mkdir()
    code = "from kvtool.cache.policies import lru\nfrom numba.core import config\nprint(config.CACHE_DIR)"
    blocked = str(tmp_path / "file" / "in")
    env = {"NUMBA_CACHE_DIR": blocked, "KVTOOL_CACHE": blocked, "TMPDIR": str(tmp_path / "temporary")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "temporary"))
    assert list((tmp_path / "temporary").iterdir()) == [], "it is gone at the end"
