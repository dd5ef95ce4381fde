"""numba's `njit` with a cache of compiled kernels that notices every change.

numba asks only whether the file of a cached function has changed. Ours are inlined across files, so an
edit of the pool, or a `git pull` that brings one, would leave old code inside the kernels of files that
did not change. The cache therefore lies in a folder named after the text of all kernels.
"""

import hashlib
import shutil
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


def use_cache(base: Path) -> None:
    """Name a folder in `base` to numba and remove those of older texts. numba finds another if it must."""
    folder = base / f"kernels-{kernels_digest()}"
    if not folder.is_dir():
        for old in base.glob("kernels-*"):
            shutil.rmtree(old, ignore_errors=True)
    numba.config.CACHE_DIR = str(folder)


use_cache(Path(numba.config.CACHE_DIR or PACKAGE / "__pycache__"))
