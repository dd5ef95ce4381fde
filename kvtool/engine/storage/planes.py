"""Byte planes: numbers taken apart so that zstd finds what repeats in them, and put together again.

Signs and exponents of neighbouring numbers are alike, mantissas are noise. All first bytes stand
together, then all second ones; numbers are first rotated left by one bit, which puts the whole exponent
of a bf16 or fp32 into one byte. Each plane is a zstd frame with a checksum, so that each gets codes of its
own. Exact, whatever the bytes mean.
"""

from typing import Any

import numpy as np
import zstandard

LEVEL = 3
"""Higher levels search longer for matches that noise does not have."""

UNSIGNED: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}

LENGTH = 4
"""Bytes of a frame's length before the frames, little-endian, one for each plane."""


def compress(data: bytes, width: int) -> bytes:
    """Frames of `data`, whose elements have `width` bytes (2 or 4)."""
    words = np.frombuffer(data, UNSIGNED[width])
    turned = (words << 1) | (words >> (8 * width - 1))
    planes = turned.view(np.uint8).reshape(-1, width).T
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    frames = [compressor.compress(plane.tobytes()) for plane in planes]
    return b"".join([*(len(frame).to_bytes(LENGTH, "little") for frame in frames), *frames])


def decompress(data: bytes | bytearray | memoryview, width: int, size: int) -> bytearray:
    """Inverse of `compress`, whose input had `size` bytes. ValueError for anything else."""
    rows = np.empty((size // width, width), np.uint8)
    at = LENGTH * width
    for plane in range(width):
        length = int.from_bytes(data[LENGTH * plane : LENGTH * (plane + 1)], "little")
        try:
            frame = zstandard.ZstdDecompressor().decompress(bytes(data[at : at + length]), len(rows))
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
        if len(frame) != len(rows):
            raise ValueError(f"{len(frame)} numbers where {len(rows)} are right")
        rows[:, plane] = np.frombuffer(frame, np.uint8)
        at += length
    turned = rows.reshape(-1).view(UNSIGNED[width])
    return bytearray(((turned >> 1) | (turned << (8 * width - 1))).tobytes())
