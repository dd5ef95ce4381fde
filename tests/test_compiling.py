"""Compiled kernels are kept by the text of all kernels, not by that of one file."""

import subprocess
import sys
from pathlib import Path

from kvtool.compiling import writable

CALLER = """
from numba import njit as _
from kvtool import compiling
from pathlib import Path
import os
compiling.PACKAGE = Path(os.environ["ROOM"])
compiling.use_cache(Path(os.environ["ROOM"]) / "cache")
import sys
sys.path.insert(0, os.environ["ROOM"])
from outer import doubled
print(doubled(5))
"""


def run(room: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CALLER], capture_output=True, text=True, env={"ROOM": str(room)}, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_edit_of_an_inlined_function_reaches_its_callers(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(
        "from numba import njit\n\n\n@njit(cache=True)\ndef factor():\n    return 2\n"
    )
    (tmp_path / "outer.py").write_text(
        "from numba import njit\nfrom inner import factor\n\n\n"
        "@njit(cache=True)\ndef doubled(x):\n    return x * factor()\n"
    )
    assert run(tmp_path) == "10"
    assert run(tmp_path) == "10"
    (first,) = (tmp_path / "cache").glob("kernels-*")
    (tmp_path / "inner.py").write_text((tmp_path / "inner.py").read_text().replace("return 2", "return 3"))
    assert run(tmp_path) == "15"
    (second,) = (tmp_path / "cache").glob("kernels-*")
    assert first != second, "the old text's kernels are gone"
    assert list(second.rglob("*.nbi")), "the new one's are kept"


def test_kernels_are_kept_in_the_first_folder_that_can_be_written_to(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert writable([blocked / "a", tmp_path / "b" / "c", tmp_path / "d"]) == tmp_path / "b" / "c"
    assert list((tmp_path / "b" / "c").iterdir()) == [] and not (tmp_path / "d").exists()


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
