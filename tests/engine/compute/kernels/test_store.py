"""Kernels that write blocks: by index, and squeezed to int8."""

import pytest
import torch

from kvtool.engine.compute.kernels.layers import LayerBlocks, QuantizedBlocks, dequantize
from kvtool.engine.compute.kernels.store import (
    squeeze_int8,
    squeeze_int8_reference,
    store,
    store_reference,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def blocks_of(
    slots: int, block: int, heads: int, width: int, value_width: int, dtype: torch.dtype
) -> LayerBlocks:
    shape = (slots, block, heads)
    return LayerBlocks(
        torch.full((*shape, width), float("nan"), dtype=dtype, device=DEVICE),
        torch.full((*shape, value_width), float("nan"), dtype=dtype, device=DEVICE),
        QuantizedBlocks(
            torch.zeros(*shape, width, dtype=torch.int8, device=DEVICE),
            torch.zeros(slots, heads, width, dtype=torch.float16, device=DEVICE),
            None,
            torch.zeros(*shape, value_width, dtype=torch.int8, device=DEVICE),
            torch.zeros(shape, dtype=torch.float16, device=DEVICE),
            None,
        ),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("width", "value_width"), [(64, 64), (80, 96)])
def test_tokens_land_in_their_slots_and_nowhere_else(
    dtype: torch.dtype, width: int, value_width: int
) -> None:
    torch.manual_seed(0)
    ours, theirs = (blocks_of(6, 16, 3, width, value_width, dtype) for _ in range(2))
    key = torch.randn(3, 9, width).to(dtype).to(DEVICE).transpose(0, 1)
    value = torch.randn(3, 9, value_width).to(dtype).to(DEVICE).transpose(0, 1)
    writes = torch.tensor([95, 0, 17, 16, 31, 40, 41, 42, 64], device=DEVICE)
    store(key, value, writes, ours)
    store_reference(key, value, writes, theirs)
    for mine, other in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
        assert torch.equal(mine.nan_to_num(7.0), other.nan_to_num(7.0))
        assert int(mine.isnan().any(-1).sum()) == (6 * 16 - 9) * 3


@pytest.mark.parametrize(("width", "value_width"), [(64, 64), (80, 96)])
def test_squeezed_blocks_are_within_half_a_scale(width: int, value_width: int) -> None:
    torch.manual_seed(1)
    blocks, theirs = (blocks_of(6, 16, 3, width, value_width, torch.float32) for _ in range(2))
    for tensor in (blocks.keys, blocks.values):
        tensor.copy_(torch.randn(tensor.shape, device=DEVICE) * torch.rand(tensor.shape[-1], device=DEVICE))
    # A channel of zeros, an outlier, and codes that lie halfway between two.
    blocks.keys[2, :, 1, 5] = 0.0
    blocks.values[2, 3] = 0.0
    blocks.keys[4, 7, 0, 9] = 3e4
    blocks.values[4, 2, 1] = torch.arange(value_width, device=DEVICE) - 0.5
    blocks.values[4, 2, 1, 0] = 127.0
    theirs.keys.copy_(blocks.keys)
    theirs.values.copy_(blocks.values)
    sources = torch.tensor([2, 4, 5], device=DEVICE)
    targets = torch.tensor([0, 5, 3], device=DEVICE)
    squeeze_int8(blocks, sources, targets)
    squeeze_int8_reference(theirs, sources, targets)
    mine, other = blocks.quantized, theirs.quantized
    assert mine is not None and other is not None
    for got, reference in (
        (mine.key_codes, other.key_codes),
        (mine.key_scales, other.key_scales),
        (mine.value_codes, other.value_codes),
        (mine.value_scales, other.value_scales),
    ):
        assert torch.equal(got, reference)
    for source, target in ((2, 0), (4, 5), (5, 3)):
        keys, values = dequantize(mine, target)
        half = mine.key_scales[target].float() / 2 * 1.0001
        assert ((keys - blocks.keys[source]).abs() <= half).all()
        half = mine.value_scales[target].float()[..., None] / 2 * 1.0001
        assert ((values - blocks.values[source]).abs() <= half).all()
    assert int(mine.key_codes[[1, 2, 4]].abs().sum()) == 0
