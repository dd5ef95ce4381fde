"""Compiled kernels are kept by the text of all kernels, not by that of one file."""

import subprocess
import sys
from pathlib import Path

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
