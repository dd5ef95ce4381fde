"""numba's compilers with a cache of compiled kernels that notices every change.

numba asks only whether the file of a cached function has changed. Ours are inlined across files, so an
edit of the pool, or a `git pull` that brings one, would leave old code inside the kernels of files that
did not change. The cache therefore lies in a folder named after the text of all kernels.
"""

import atexit
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import numba
from numba import types
from numba.core.ccallback import CFunc

from kvtool.kernel_files import KernelCache

PACKAGE = Path(__file__).parent
MARKS = (b"njit", b"compiled(", b"@compiled", b"intrinsic")


def kernels_digest() -> str:
    """Digest of numba's version and of all files with kernels."""
    digest = hashlib.sha256(numba.__version__.encode() + b"\0")
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_bytes()
        if any(mark in text for mark in MARKS):
            digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + text + b"\0")
    return digest.hexdigest()[:16]


def use_cache(bases: list[Path]) -> None:
    """Name a folder in the first of some that serves to numba, made if need be; else one that ends with the
    process. Folders of older texts beside it are removed.

    numba would refuse to compile at all, or keep kernels where it looks at one file only.
    """
    for base in bases:
        folder = base / f"kernels-{kernels_digest()}"
        new = not folder.is_dir()
        if not _private(folder):
            continue
        if new:
            for old in base.glob("kernels-*"):
                if old != folder:
                    shutil.rmtree(old, ignore_errors=True)
        break
    else:
        folder = Path(tempfile.mkdtemp(prefix="kvtool-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    numba.config.CACHE_DIR = str(folder)


def _private(folder: Path) -> bool:
    """Whether a folder, made if need be, can be written to by us and by nobody else: kernels are code."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return False
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def njit(*given: Any, cache: bool = False, **options: Any) -> Any:
    """numba's decorator, with a function or at most one signature; its cache is a `KernelCache`."""
    if given and isinstance(given[0], FunctionType):
        return njit(cache=cache, **options)(given[0])

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(**options)(function)
        if cache:
            dispatcher._cache = KernelCache(function)
        for signature in given:
            dispatcher.compile(signature)
            dispatcher.disable_compile()
        return dispatcher

    return decorate


def c_function(work: Callable[[Any], None]) -> int:
    """Address of `void (void *)`, compiled from a function and cached likewise."""
    compiled: Any = CFunc(work, ((types.voidptr,), types.void), {}, {})
    compiled._cache = KernelCache(work)
    compiled.compile()
    return int(compiled.address)


def _candidates() -> list[Path]:
    kept = [numba.config.CACHE_DIR or PACKAGE / "__pycache__", os.environ.get("KVTOOL_CACHE")]
    home = os.environ.get("HOME")
    return [Path(each) for each in (*kept, home and f"{home}/.cache/kvtool") if each]


use_cache(_candidates())
