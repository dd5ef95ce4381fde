"""numba's `njit` with a cache of compiled kernels that notices every change.

numba asks only whether the file of a cached function has changed. Ours are inlined across files, so an
edit of the pool, or a `git pull` that brings one, would leave old code inside the kernels of files that
did not change. The cache therefore lies in a folder named after the text of all kernels.
"""

import atexit
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import numba
from numba import njit

__all__ = ["njit"]

PACKAGE = Path(__file__).parent
MARKS = (b"njit", b"compiled(", b"@compiled", b"intrinsic")


def kernels_digest() -> str:
    """Digest of all files with kernels."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_bytes()
        if any(mark in text for mark in MARKS):
            digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + text + b"\0")
    return digest.hexdigest()[:16]


def writable(candidates: list[Path]) -> Path:
    """The first of some folders that can be written to, made if need be; else one that ends with the process.

    numba would refuse to compile at all, or keep kernels where it looks at one file only.
    """
    for folder in candidates:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            continue
        return folder
    own = Path(tempfile.mkdtemp(prefix="kvtool-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return own


def use_cache(base: Path) -> None:
    """Name a folder in `base` to numba and remove those of older texts."""
    folder = base / f"kernels-{kernels_digest()}"
    if not folder.is_dir():
        for old in base.glob("kernels-*"):
            shutil.rmtree(old, ignore_errors=True)
    numba.config.CACHE_DIR = str(folder)


def _candidates() -> list[Path]:
    kept = [numba.config.CACHE_DIR or PACKAGE / "__pycache__", os.environ.get("KVTOOL_CACHE")]
    home = os.environ.get("HOME")
    return [Path(each) for each in (*kept, home and f"{home}/.cache/kvtool") if each]


use_cache(writable(_candidates()))
