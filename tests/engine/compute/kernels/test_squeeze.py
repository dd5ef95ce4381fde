"""Blocks squeezed and expanded by the kernels: the codecs' codes, and their numbers."""

import pytest
import torch

from kvtool.engine.compute.kernels.layers import QuantizedBlocks, dequantize, empty_blocks
from kvtool.engine.compute.kernels.squeeze import expand, expand_reference, squeeze, squeeze_reference
from kvtool.engine.storage.grid import step_sizes

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LAYERS, SLOTS, HEADS = 2, 5, 2


def raw(block: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers whose channels differ in size, with one channel of zeros."""
    numbers = torch.randn(LAYERS, SLOTS, block, HEADS, width) * torch.rand(width)
    numbers[..., width // 2 + 1] = 0.0
    return numbers.to(dtype).to(DEVICE)


def blank(block: int, width: int, value_width: int, bits: tuple[int, int]) -> QuantizedBlocks:
    blocks = empty_blocks((LAYERS, SLOTS, block, HEADS), width, value_width, bits, DEVICE)
    for tensor in blocks.tensors():
        tensor.zero_()
    return blocks


SHAPES = [
    ((8, 8), 64, 64, 16, torch.float32),
    ((8, 8), 80, 96, 64, torch.bfloat16),
    ((8, 4), 128, 64, 32, torch.float32),
    ((4, 4), 64, 80, 64, torch.float32),
    ((4, 4), 96, 128, 16, torch.bfloat16),
    ((4, 4), 256, 256, 32, torch.float16),
    ((4, 4), 14, 10, 16, torch.float32),
]


@pytest.mark.parametrize(("bits", "width", "value_width", "block", "dtype"), SHAPES)
def test_codes_and_grids_are_the_codecs(
    bits: tuple[int, int], width: int, value_width: int, block: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(width)
    keys, values = raw(block, width, dtype), raw(block, value_width, dtype)
    keys[1, 2, 3, 1, 5] = 300.0  # an outlier
    values[0, 4, 2, 0] = torch.arange(value_width) - 0.5  # halfway between codes
    ours, theirs = (blank(block, width, value_width, bits) for _ in range(2))
    sources, targets = (torch.tensor(each, device=DEVICE) for each in ([2, 4], [3, 0]))
    squeeze(keys, values, sources, ours, targets)
    squeeze_reference(keys, values, sources, theirs, targets)
    for mine, other in zip(ours.tensors(), theirs.tensors(), strict=True):
        assert not mine[:, [1, 2, 4]].any(), "written to other slots"
        if bits == (8, 8):
            assert torch.equal(mine, other)
    steps = [(ours.key_steps, theirs.key_steps, bits[0]), (ours.value_steps, theirs.value_steps, bits[1])]
    for mine, other, each in steps:
        # A rotation's sums may round otherwise: a step at an edge is the next one.
        apart = (mine.int() - other.int()).abs()
        assert apart.max() <= 1 and (apart > 0).float().mean() < (0.001 if each == 8 else 0.01)
    for layer in range(LAYERS):
        for source, target in zip([2, 4], [3, 0], strict=True):
            for got, want in zip(
                dequantize(ours.layer(layer), target), dequantize(theirs.layer(layer), target), strict=True
            ):
                assert (got - want).norm() <= 0.02 * want.norm()
            if bits == (8, 8):
                got, _ = dequantize(ours.layer(layer), target)
                half = step_sizes(ours.key_steps[layer, target]).repeat_interleave(min(block, 32), 0) / 2
                assert ((got - keys[layer, source].float()).abs() <= half * 1.0001).all()


@pytest.mark.parametrize(("bits", "width", "value_width", "block", "dtype"), SHAPES)
def test_expanded_blocks_are_what_the_codes_say(
    bits: tuple[int, int], width: int, value_width: int, block: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(width)
    blocks = blank(block, width, value_width, bits)
    every = torch.arange(SLOTS, device=DEVICE)
    squeeze_reference(raw(block, width, dtype), raw(block, value_width, dtype), every, blocks, every)
    nothing = float("nan")
    ours = [torch.full_like(raw(block, each, dtype), nothing) for each in (width, value_width)]
    theirs = [tensor.clone() for tensor in ours]
    sources, targets = (torch.tensor(each, device=DEVICE) for each in ([4, 1, 0], [0, 3, 2]))
    expand(blocks, sources, *ours, targets)
    expand_reference(blocks, sources, *theirs, targets)
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine[:, [1, 4]].isnan().all() and not mine[:, targets].isnan().any()
        torch.testing.assert_close(mine, other, atol=tolerance, rtol=tolerance, equal_nan=True)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_what_no_step_reaches_is_clipped() -> None:
    keys = torch.full((1, 1, 16, 1, 16), 1e30, device=DEVICE)
    for bits in ((8, 8), (4, 4)):
        blocks = empty_blocks((1, 1, 16, 1), 16, 16, bits, DEVICE)
        zero = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        squeeze(keys, keys, zero, blocks, zero)
        restored, _ = dequantize(blocks.layer(0), 0)
        assert torch.isfinite(restored).all() and restored.max() > 1e5
