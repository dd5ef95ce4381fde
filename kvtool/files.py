"""Files that are either whole or absent: written under a temporary name, synced, then renamed."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvtool.errors import KvtoolError

PRIVATE = 0o600
"""Permissions of files from which a prompt can be read."""


@contextmanager
def whole(path: Path, mode: int | None = None) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on a clean exit sync it and rename it into place.

    mode: the file's permissions; None for those that its writer and the umask gave it.

    On an error nothing is left behind, and one of writing is a KvtoolError. After a crash a `.tmp` file may
    remain; it is never read.
    """
    check_folder(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as handle:
            os.fsync(handle.fileno())
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        if error.filename not in (None, str(temporary)):
            raise
        raise KvtoolError(f"{path}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def sync_directory(folder: Path) -> None:
    """Make a rename in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes | str, mode: int | None = None) -> None:
    """Write `data` to `path` atomically and durably."""
    with whole(path, mode) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def check_folder(path: Path) -> None:
    """KvtoolError where the folder of a file that is to be written does not exist."""
    if not path.parent.is_dir():
        raise KvtoolError(f"{path}: no such folder {path.parent}", "create it, or name another file")


def check_targets(inputs: Iterable[str | Path], *targets: Path | None) -> None:
    """KvtoolError where a file that is to be written is one that is read, or has no folder."""
    for target in targets:
        if target is None:
            continue
        for path in map(Path, inputs):
            if target.resolve() == path.resolve() or (
                target.exists() and path.exists() and target.samefile(path)
            ):
                raise KvtoolError(
                    f"{target} is an input", "kvtool never writes over its input; name another file"
                )
        check_folder(target)
