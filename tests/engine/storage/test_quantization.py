"""Rotation, packing, grids and planes against slow references written out anew."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kvtool.engine.storage import grid
from kvtool.engine.storage.packing import pack, packed_width, unpack
from kvtool.engine.storage.planes import compress, decompress
from kvtool.engine.storage.rotation import rotate, rotate_queries, unrotate_output


def hadamard(size: int) -> np.ndarray:
    """Entry (i, j) is -1 to the number of ones that i and j have in common."""
    signs = [[(-1) ** (row & column).bit_count() for column in range(size)] for row in range(size)]
    return np.array(signs) / math.sqrt(size)


@pytest.mark.parametrize(("dim", "size"), [(1, 1), (7, 1), (14, 2), (64, 64), (80, 16), (96, 32), (128, 128)])
def test_rotation_is_a_hadamard_matrix_in_runs_of_the_largest_power_of_two(dim: int, size: int) -> None:
    numbers = np.random.default_rng(dim).normal(size=(3, dim))
    expected = (numbers.reshape(3, -1, size) @ hadamard(size)).reshape(3, dim)
    found = rotate(torch.tensor(numbers))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(rotate(found).numpy(), numbers, atol=1e-12)


def test_attention_over_rotated_blocks_is_attention() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(5, 96, generator=generator, dtype=torch.float64) for _ in range(3))
    expected = torch.softmax(queries @ keys.T, 1) @ values
    rotated = torch.softmax(rotate_queries(queries) @ rotate(keys).T, 1) @ rotate(values)
    torch.testing.assert_close(unrotate_output(rotated), expected)


@settings(max_examples=60, deadline=None)
@given(bits=st.sampled_from([2, 3, 4, 5, 6, 8]), dim=st.integers(1, 70), seed=st.integers(0, 1000))
def test_packed_codes_come_back(bits: int, dim: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 2**bits, (2, 3, dim)).astype(np.uint8)
    packed = pack(torch.tensor(codes), bits)
    planes = {2: [2], 3: [2, 1], 4: [4], 5: [4, 1], 6: [4, 2], 8: [8]}[bits]
    assert packed.shape == (2, 3, sum(math.ceil(dim * plane / 8) for plane in planes))
    assert packed.shape[-1] == packed_width(dim, bits)
    assert np.array_equal(unpack(packed, dim, bits).numpy(), codes)


def test_where_a_code_stands() -> None:
    assert pack(torch.tensor([1, 2, 3, 4], dtype=torch.uint8), 4).tolist() == [0x31, 0x42]
    assert pack(torch.tensor([0x1F, 0x20], dtype=torch.uint8), 6).tolist() == [0x0F, 0b10_01]
    assert pack(torch.arange(5, dtype=torch.uint8), 3).tolist() == [0b00_00_10_00, 0b11_01, 0b1_0000]


finite = st.floats(-5e4, 5e4, width=32, allow_subnormal=False)  # a part of the smallest of them is nothing


def slow_steps(exact: float) -> float:
    """The smallest of fp16's numbers with three bits of mantissa that is not below `exact`."""
    codes = np.arange(0xF8, dtype=np.uint16) << 7
    return float(min(step for step in codes.view(np.float16).astype(np.float64) if step >= exact))


@settings(max_examples=100, deadline=None)
@given(numbers=hnp.arrays(np.float32, (2, 6), elements=finite), bits=st.sampled_from([2, 3, 4]))
def test_a_grid_with_an_offset(numbers: np.ndarray, bits: int) -> None:
    made = grid.encode(torch.tensor(numbers), 1, bits, symmetric=False)
    assert made.offsets is not None and made.codes.max() < 2**bits
    steps = (made.steps.numpy().astype(np.uint16) << 7).view(np.float16).astype(np.float64)
    points = (made.codes.numpy().astype(int) + made.offsets.numpy()) * steps
    np.testing.assert_array_equal(grid.decode(made).numpy(), points.astype(np.float32))
    assert (np.abs(points - numbers) <= steps / 2 * (1 + 1e-5)).all()
    for row, step in zip(numbers.astype(np.float64), steps[:, 0], strict=True):
        farthest = abs(row.min()) / 127
        assert step >= 0.999 * max((row.max() - row.min()) / 2**bits, farthest)
        assert step <= slow_steps(1.001 * max((row.max() - row.min()) / (2**bits - 1), farthest))


@settings(max_examples=60, deadline=None)
@given(numbers=hnp.arrays(np.float32, (2, 6), elements=finite))
def test_a_symmetric_grid(numbers: np.ndarray) -> None:
    made = grid.encode(torch.tensor(numbers), 1, 8, symmetric=True)
    assert made.offsets is None and made.codes.min() >= -127
    for row, step, found in zip(
        numbers.astype(np.float64), made.steps.numpy()[:, 0], grid.decode(made).numpy(), strict=True
    ):
        expected = slow_steps(np.abs(row).max() / 127)
        real = float(np.uint16(int(step) << 7).view(np.float16))
        assert real == pytest.approx(expected, rel=0.13) and real >= expected * 0.999
        assert (np.abs(found - row) <= real / 2 * (1 + 1e-5)).all()


@settings(max_examples=40, deadline=None)
@given(data=st.binary(max_size=400), width=st.sampled_from([2, 4]))
def test_planes_come_back(data: bytes, width: int) -> None:
    data = data[: len(data) // width * width]
    assert decompress(compress(data, width), width, len(data)) == data


def test_planes_make_model_like_numbers_smaller_and_notice_damage() -> None:
    numbers = np.random.default_rng(0).normal(size=20000).astype(np.float32)
    bf16 = (numbers.view(np.uint32) >> 16).astype("<u2").tobytes()
    small = compress(bf16, 2)
    assert len(bf16) / len(small) > 1.4
    with pytest.raises(ValueError, match="numbers where"):
        decompress(small, 2, len(bf16) + 2)
    with pytest.raises(ValueError, match=r"(?i)checksum|corrupt|decompress"):
        decompress(small[:-1] + bytes([small[-1] ^ 1]), 2, len(bf16))
