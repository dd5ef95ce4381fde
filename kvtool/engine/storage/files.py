"""Files of a shard directory: private to their owner, since KV reveals its prompt, and whole or absent."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvtool.errors import KvtoolError
from kvtool.files import PRIVATE, whole

DAMAGED = "run prewarm again, or delete the file"
"""What helps against a companion of shards that cannot be read."""


def write_private(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically, durably, never readable by others."""
    with private_stream(path) as write:
        write(data)


@contextmanager
def private_stream(path: Path) -> Iterator[Callable[[bytes | bytearray], None]]:
    """Yield a function that appends to what becomes `path` when the context ends without an error."""
    try:
        with whole(path, PRIVATE) as temporary:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
            with os.fdopen(descriptor, "wb") as handle:

                def write(data: bytes | bytearray) -> None:
                    handle.write(data)

                yield write
    except OSError as error:  # a full disk, no permission
        raise KvtoolError(f"{path}: {error.strerror}") from error


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold `folder` for writing: one prewarm, merge or gc at a time. The lock dies with the process."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise KvtoolError(f"{folder}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise KvtoolError(f"{folder}: another process is writing to it", "wait for it to end") from None
        yield
    finally:
        os.close(descriptor)


def write_companion(path: Path, text: str) -> None:
    """Write a JSON file that lies beside shards, over an older one; the same bytes are not written again."""
    data = text.encode()
    try:
        same = path.read_bytes() == data
    except OSError:  # none, or one that cannot be read
        same = False
    if not same:
        write_private(path, data)


def drop_damaged(path: Path, read: Callable[[], object]) -> None:
    """Delete a companion that `read` refuses: whoever made the shards anew has none to put in its place."""
    try:
        read()
    except KvtoolError:
        try:
            path.unlink()
        except OSError as error:
            raise KvtoolError(f"{path}: {error.strerror}", "delete it") from error


def read_companion(path: Path) -> str | None:
    """Its text, None where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise KvtoolError(f"{path}: {error}", DAMAGED) from error
