"""The GGUF reader on a file written here byte by byte, and against a slow reference for each quantization."""

import struct
from pathlib import Path

import numpy as np
import pytest

from kvtool.errors import KvtoolError
from kvtool.gguf import GGUF


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def write(path: Path, tensors: list[tuple[str, tuple[int, ...], int, bytes]]) -> None:
    pairs = [
        text("name") + struct.pack("<I", 8) + text("tiny é"),
        text("count") + struct.pack("<II", 4, 7),
        text("words") + struct.pack("<IIQ", 9, 8, 2) + text("Ġ t") + text("in"),
        text("kinds") + struct.pack("<IIQ3i", 9, 5, 3, 1, -2, 3),
        text("flag") + struct.pack("<I?", 7, True),
    ]
    table, data = b"", b""
    for name, shape, kind, raw in tensors:
        table += text(name) + struct.pack("<I", len(shape))
        table += struct.pack(f"<{len(shape)}QIQ", *reversed(shape), kind, len(data))
        data += raw + b"\0" * (-len(raw) % 32)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs)) + b"".join(pairs) + table
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)


def reference_q4_1(raw: bytes) -> list[float]:
    values: list[float] = []
    for at in range(0, len(raw), 20):
        scale, minimum = struct.unpack_from("<2e", raw, at)
        nibbles = raw[at + 4 : at + 20]
        values += [(byte & 15) * scale + minimum for byte in nibbles]
        values += [(byte >> 4) * scale + minimum for byte in nibbles]
    return values


def reference_q8_0(raw: bytes) -> list[float]:
    values: list[float] = []
    for at in range(0, len(raw), 34):
        (scale,) = struct.unpack_from("<e", raw, at)
        values += [number * scale for number in struct.unpack_from("<32b", raw, at + 2)]
    return values


def test_metadata_and_tensors_of_every_kind(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    halves = lambda n: random.standard_normal(n).astype("<f2").tobytes()  # noqa: E731
    q4 = b"".join(halves(2) + random.bytes(16) for _ in range(6))
    q8 = b"".join(halves(1) + random.bytes(32) for _ in range(4))
    plain = random.standard_normal(5).astype("<f4")
    small = random.standard_normal((3, 2)).astype("<f2")
    write(
        tmp_path / "tiny.gguf",
        [
            ("q4", (3, 64), 3, q4),
            ("q8", (2, 64), 8, q8),
            ("plain", (5,), 0, plain.tobytes()),
            ("small", (3, 2), 1, small.tobytes()),
        ],
    )
    with GGUF(tmp_path / "tiny.gguf") as file:
        assert file.metadata == {
            "name": "tiny é",
            "count": 7,
            "words": ["Ġ t", "in"],
            "kinds": [1, -2, 3],
            "flag": True,
        }
        np.testing.assert_allclose(file.read("q4").ravel(), reference_q4_1(q4), rtol=1e-6)
        np.testing.assert_allclose(file.read("q8").ravel(), reference_q8_0(q8), rtol=1e-6)
        np.testing.assert_array_equal(file.read("plain"), plain)
        np.testing.assert_array_equal(file.read("small"), small)
        assert file.read("q4").shape == (3, 64)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"PK\x03\x04" + b"\0" * 60)
    with pytest.raises(KvtoolError, match=r"no\.gguf: not a readable GGUF file: magic"):
        GGUF(tmp_path / "no.gguf")
    write(tmp_path / "odd.gguf", [("w", (32,), 12, b"\0" * 144)])
    with GGUF(tmp_path / "odd.gguf") as file, pytest.raises(KvtoolError, match=r"tensor w .* type 12"):
        file.read("w")


@pytest.mark.parametrize("keep", [4, 23, 60, 150])
def test_a_truncated_file_is_the_users_error(tmp_path: Path, keep: int) -> None:
    write(tmp_path / "whole.gguf", [("w", (4,), 0, b"\0" * 16)])
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "whole.gguf").read_bytes()[:keep])
    with pytest.raises(KvtoolError, match="not a readable GGUF file"):
        GGUF(tmp_path / "cut.gguf")
