"""The kernel that writes new keys and values into blocks."""

import pytest
import torch

from kvtool.engine.compute.kernels.layers import LayerBlocks
from kvtool.engine.compute.kernels.store import store, store_reference

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def blocks_of(
    slots: int, block: int, heads: int, width: int, value_width: int, dtype: torch.dtype
) -> LayerBlocks:
    shape = (slots, block, heads)
    return LayerBlocks(
        torch.full((*shape, width), float("nan"), dtype=dtype, device=DEVICE),
        torch.full((*shape, value_width), float("nan"), dtype=dtype, device=DEVICE),
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
