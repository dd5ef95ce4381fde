"""Read a GGUF file: its metadata, and its tensors as float32 arrays. Only what the embedded model needs.

Layout: magic, version, counts; key/value metadata; tensor table; then tensor data, aligned. The format
is described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Arrays of strings are walked
with one `struct` call a string, which makes a 49K-token vocabulary a matter of milliseconds.
"""

import mmap
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtool.errors import KvtoolError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor lies. shape: outermost dimension first (the file has it reversed)."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


class GGUF:
    """An open file. `metadata` maps keys to values; `tensors` maps names to their place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as handle:
            self._data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self._read_tables()
        except (struct.error, KeyError, UnicodeDecodeError, ValueError) as error:
            self._data.close()
            raise KvtoolError(f"{path}: not a readable GGUF file: {error}") from error

    def __enter__(self) -> "GGUF":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._data.close()

    def read(self, name: str) -> NDArray[np.float32]:
        """One tensor, de-quantized, float32 of its shape."""
        tensor = self.tensors[name]
        if tensor.kind not in _KINDS:
            raise KvtoolError(
                f"{self.path}: tensor {name} has quantization type {tensor.kind}, not supported"
            )
        elements, size, decode = _KINDS[tensor.kind]
        blocks = int(np.prod(tensor.shape)) // elements
        raw = np.frombuffer(self._data, np.uint8, blocks * size, self._start + tensor.offset)
        # A copy: `decode` may return a view, and a view would keep the mapping from being closed.
        return np.array(decode(raw.reshape(blocks, size)), dtype=np.float32).reshape(tensor.shape)

    def _read_tables(self) -> None:
        magic, version, n_tensors, n_pairs = struct.unpack_from("<4sIQQ", self._data, 0)
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"magic {magic!r}, version {version}")
        self._position = 24
        self.metadata: dict[str, Any] = {}
        for _ in range(n_pairs):
            key = self._string()
            self.metadata[key] = self._value(self._scalar("I"))
        self.tensors = {tensor.name: tensor for tensor in self._tensor_table(n_tensors)}
        alignment = int(self.metadata.get("general.alignment", 32))
        self._start = -(-self._position // alignment) * alignment

    def _tensor_table(self, count: int) -> Iterator[Tensor]:
        for _ in range(count):
            name = self._string()
            dimensions = [self._scalar("Q") for _ in range(self._scalar("I"))]
            yield Tensor(name, tuple(reversed(dimensions)), self._scalar("I"), self._scalar("Q"))

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self._position)
        self._position += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        length = self._scalar("Q")
        start = self._position
        self._position += length
        return self._data[start : self._position].decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(_SCALARS[kind])
        inner, count = self._scalar("I"), self._scalar("Q")
        if inner in _SCALARS:
            values = struct.unpack_from(f"<{count}{_SCALARS[inner]}", self._data, self._position)
            self._position += struct.calcsize(f"<{count}{_SCALARS[inner]}")
            return list(values)
        return [self._value(inner) for _ in range(count)]


def _float32(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    return blocks.view("<f4")


def _float16(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    return blocks.view("<f2").astype(np.float32)


def _q4_1(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """32 values in 20 bytes: scale and minimum (float16), then nibbles; low ones are the first half."""
    scale = blocks[:, 0:2].copy().view("<f2").astype(np.float32)
    minimum = blocks[:, 2:4].copy().view("<f2").astype(np.float32)
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    return nibbles.astype(np.float32) * scale + minimum


def _q8_0(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """32 values in 34 bytes: a scale (float16), then int8."""
    scale = blocks[:, 0:2].copy().view("<f2").astype(np.float32)
    return blocks[:, 2:].copy().view(np.int8).astype(np.float32) * scale


_KINDS: dict[int, tuple[int, int, Callable[[NDArray[np.uint8]], NDArray[np.float32]]]] = {
    0: (1, 4, _float32),
    1: (1, 2, _float16),
    3: (32, 20, _q4_1),
    8: (32, 34, _q8_0),
}
"""ggml type -> (values per block, bytes per block, decoder of uint8 [blocks, bytes])."""
