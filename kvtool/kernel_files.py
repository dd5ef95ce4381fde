"""Files of compiled kernels that prove themselves: numba unpickles whatever it finds.

A file that a crash or a full disk has cut short would end the program at every start. Ours end with the
digest of what comes before, and what does not match is compiled anew. That is no guard against who may write
there: `compiling.py` sees to it that nobody else may.
"""

import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from numba.core.caching import FunctionCache, IndexDataCacheFile

SIZE = hashlib.sha256().digest_size


class _Files(IndexDataCacheFile):  # type: ignore[misc]
    """numba's index and data files. It reads them up to the end of what it wrote: the digest is behind."""

    def _load_index(self) -> dict[Any, str]:
        return super()._load_index() if _whole(self._index_path) else {}

    def _load_data(self, name: str) -> Any:
        if not _whole(self._data_path(name)):
            raise FileNotFoundError(f"{name}: damaged, which is as good as missing")
        return super()._load_data(name)

    @contextmanager
    def _open_for_write(self, path: str) -> Iterator[io.BytesIO]:
        with super()._open_for_write(path) as file:
            text = io.BytesIO()
            yield text
            file.write(text.getvalue() + hashlib.sha256(text.getvalue()).digest())


def _whole(path: str) -> bool:
    try:
        found = Path(path).read_bytes()
    except OSError:
        return False
    return hashlib.sha256(found[:-SIZE]).digest() == found[-SIZE:]


class KernelCache(FunctionCache):  # type: ignore[misc]
    """The compiled forms of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file: _Files = _Files(
            self.cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp()
        )

    def save_overload(self, sig: Any, data: Any) -> None:
        """Where there is no room, kernels serve this process only."""
        with suppress(OSError):
            super().save_overload(sig, data)
