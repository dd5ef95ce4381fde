"""Paths, globs, directories, stdin and zip members -> byte streams, decompressed by their content."""

import glob
import gzip
import io
import lzma
import shutil
import struct
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from kvtool.errors import KvtoolError

STDIN = "-"
LOG_SUFFIXES = frozenset(
    [
        ".jsonl",
        ".ndjson",
        ".json",
        ".log",
        ".parquet",
        ".pq",
        ".csv",
        ".tsv",
        ".yaml",
        ".yml",
        ".traj",
        ".eval",
        ".zip",
    ]
)
COMPRESSIONS = {".gz": "gz", ".zst": "zst"}
GZIP, ZSTD, ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile)
"""What reading a cut or corrupt compressed stream raises."""

ZIP_ERRORS = (LookupError, RuntimeError, ValueError, OSError, struct.error, lzma.LZMAError)
"""What an encrypted, unknown or corrupt archive raises beside DAMAGED."""


def expand(paths: Sequence[str]) -> list[str]:
    """Files named by paths, globs and directories, in order, each once.

    A directory stands for the log files below it, sorted. Raises KvtoolError for a path that is not there.
    """
    files: dict[str, None] = {}
    for path in paths:
        if Path(path).is_dir():
            files.update((str(file), None) for file in sorted(Path(path).rglob("*")) if _is_log(file))
        elif path == STDIN or Path(path).exists():
            files[path] = None
        elif matched := sorted(glob.glob(path, recursive=True)):  # noqa: PTH207
            files.update((name, None) for name in matched if Path(name).is_file())
        else:
            raise KvtoolError(f"{path}: no such file", "name a file, a folder, a glob, or - for stdin")
    if not files:
        suffixes = " ".join(sorted(LOG_SUFFIXES))
        raise KvtoolError(f"{', '.join(paths)}: no log files there", f"kvtool reads {suffixes}")
    return list(files)


def _is_log(path: Path) -> bool:
    return inner_suffix(path.name) in LOG_SUFFIXES and path.is_file() and not path.name.startswith(".")


def inner_suffix(path: str) -> str:
    """`.jsonl` of `x.jsonl.gz`."""
    plain = Path(path)
    return (plain.with_suffix("") if plain.suffix in COMPRESSIONS else plain).suffix.lower()


class Input:
    """One file of a log, or one member of a zip. It opens more than once: stdin and pipes are kept for it."""

    def __init__(self, file: str, member: str | None = None) -> None:
        self.file = file
        self.member = member
        self.path = f"{file}/{member}" if member else file
        self.compression: str | None = None
        self._spooled: Path | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def open(self) -> IO[bytes]:
        """The decompressed bytes, from the start. Cut or corrupt data raises one of DAMAGED while read."""
        try:
            if self._spooled is None and self.file == STDIN:
                self._spool(sys.stdin.buffer)
            elif self._spooled is None and not Path(self.file).is_file():
                with Path(self.file).open("rb") as pipe:
                    self._spool(pipe)
            raw = (self._spooled or Path(self.file)).open("rb")
            magic = raw.read(4)
            raw.seek(0)
        except OSError as error:
            raise KvtoolError(f"{self.path}: {error.strerror}") from error
        if self.member is not None and self._spooled is None:
            return _open_member(raw, self.member)
        if magic.startswith(GZIP):
            self.compression = "gz"
            return io.BufferedReader(gzip.GzipFile(fileobj=raw), 1 << 20)  # type: ignore[arg-type]
        if magic == ZSTD:
            self.compression = "zst"
            return io.BufferedReader(_ZstdStream(raw), 1 << 20)
        return raw

    def local(self) -> Path:
        """A path of the decompressed bytes that can be read at random."""
        with self.open() as stream:
            if self.compression is not None or (self.member is not None and self._spooled is None):
                self._spool(stream)
                self.compression = None
        return self._spooled or Path(self.file)

    def _spool(self, stream: IO[bytes]) -> None:
        folder = tempfile.TemporaryDirectory(prefix="kvtool-")
        target = Path(folder.name) / "data"
        with target.open("wb") as out:
            shutil.copyfileobj(stream, out, 1 << 20)
        self._folder, self._spooled = folder, target


def _open_member(raw: IO[bytes], member: str) -> IO[bytes]:
    try:
        opened = zipfile.ZipFile(raw).open(member)  # noqa: SIM115 (whoever reads the stream closes it)
        stream = io.BufferedReader(_ZipMember(opened), 1 << 20)
    except ZIP_ERRORS as error:
        raise zipfile.BadZipFile(str(error)) from error
    if member.endswith(".gz"):
        return io.BufferedReader(gzip.GzipFile(fileobj=stream), 1 << 20)  # type: ignore[arg-type]
    return stream


class _ZipMember(io.RawIOBase):
    """A member whose errors, whatever its compression, are among DAMAGED."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer))
        except ZIP_ERRORS as error:
            raise zipfile.BadZipFile(str(error)) from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def zip_members(path: str) -> list[str]:
    """The log files in a zip, in its order. Of inspect's `.eval` only the samples hold requests.

    Raises BadZipFile for a zip without its directory, which stands at the end.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
    except ZIP_ERRORS as error:
        raise zipfile.BadZipFile(str(error)) from error
    if path.endswith(".eval"):
        return [name for name in names if name.startswith("samples/")]
    return [name for name in names if inner_suffix(name) in LOG_SUFFIXES and "__MACOSX" not in name]


def is_zip(path: str) -> bool:
    """Whether a file begins like a zip. A pipe is none: reading would take its first bytes away."""
    if not Path(path).is_file():
        return False
    try:
        with Path(path).open("rb") as stream:
            return stream.read(4) == ZIP
    except OSError:
        return False


class _ZstdStream(io.RawIOBase):
    """Frames one after another; unlike the library's own reader it does not take a cut frame for the end."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._frame: Any = None
        self._rest = b""
        self._out = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._out:
            data = self._rest or self._raw.read(1 << 17)
            self._rest = b""
            if not data:
                if self._frame is not None:
                    raise EOFError("the compressed data ends early")
                return 0
            self._out = self._decompress(data)
        size = min(len(buffer), len(self._out))
        buffer[:size], self._out = self._out[:size], self._out[size:]
        return size

    def _decompress(self, data: bytes) -> bytes:
        import zstandard

        if self._frame is None:
            self._frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            out: bytes = self._frame.decompress(data)
        except zstandard.ZstdError as error:
            raise EOFError(str(error)) from error
        if self._frame.eof:
            self._rest, self._frame = self._frame.unused_data, None
        return out

    def close(self) -> None:
        self._raw.close()
        super().close()
