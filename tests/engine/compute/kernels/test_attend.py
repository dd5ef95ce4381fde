"""Paged attention kernels against their float64 references: raw, int8 and 4-bit blocks, mixed in a table."""

import random
from collections.abc import Callable
from importlib import import_module

import pytest
import torch
from torch import Tensor

from kvtool.engine.compute.kernels.attend import attend, attend_reference
from kvtool.engine.compute.kernels.layers import LayerBlocks, QuantizedBlocks, empty_blocks, rotation
from kvtool.engine.compute.kernels.merge import merge, merge_reference
from kvtool.engine.compute.kernels.tables import Tiles, make_tiles, splits
from kvtool.engine.compute.reads import Span

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 1e-2}


def raw_blocks(
    slots: int, block: int, heads: int, width: int, value_width: int, dtype: torch.dtype
) -> LayerBlocks:
    return LayerBlocks(
        torch.randn(slots, block, heads, width).to(dtype).to(DEVICE),
        torch.randn(slots, block, heads, value_width).to(dtype).to(DEVICE),
    )


def quantized(
    slots: int, block: int, heads: int, width: int, value_width: int, bits: tuple[int, int]
) -> QuantizedBlocks:
    """Random codes with steps of the size that unit normal keys would have, a few of them zero."""
    blocks = empty_blocks((slots, block, heads), width, value_width, bits, DEVICE)
    for tensor in blocks.tensors():
        tensor.copy_(torch.randint(0, 256, tensor.shape, dtype=torch.uint8).view(tensor.dtype))
    sizes = {8: 0.015, 4: 0.25}
    for steps, each in ((blocks.key_steps, bits[0]), (blocks.value_steps, bits[1])):
        half = (torch.rand(steps.shape) * sizes[each]).half()
        steps.copy_((half.view(torch.int16) >> 7).to(torch.uint8) * (torch.rand(steps.shape) > 0.02))
    for offsets in (blocks.key_offsets, blocks.value_offsets):
        if offsets is not None:
            offsets.copy_(torch.randint(-12, -2, offsets.shape, dtype=torch.int8))
    return blocks


def spans_of(lengths: list[tuple[int, int]], block: int, entries: list[int]) -> list[Span]:
    """Spans of (start, tokens), whose blocks are drawn from `entries` without sharing."""
    entries = list(entries)
    spans, first = [], 0
    for start, tokens in lengths:
        blocks = -(-(start + tokens) // block)
        spans.append(Span(first, first + tokens, start, [entries.pop() for _ in range(blocks)]))
        first += tokens
    return spans


def poison_rest(blocks: LayerBlocks, spans: list[Span], block: int) -> None:
    """NaN wherever no span has a token: nothing of it may be read into a result."""
    seen = torch.zeros(blocks.raw_slots * block, dtype=torch.bool)
    for span in spans:
        for position in range(span.end):
            entry = span.slots[position // block]
            if entry < blocks.raw_slots:
                seen[entry * block + position % block] = True
    for tensor in (blocks.keys, blocks.values):
        tensor.flatten(0, 1)[~seen] = float("nan")


def compare(
    blocks: LayerBlocks,
    spans: list[Span],
    heads: int,
    *,
    window: int | None = None,
    softcap: float | None = None,
    at_once: int = 2,
) -> None:
    block, kv_heads, value_width = blocks.values.shape[1:]
    dtype = blocks.keys.dtype
    rows = spans[-1].last
    # Transposed, as a model hands it over.
    query = torch.randn(heads, rows, blocks.keys.shape[3]).to(dtype).to(DEVICE).transpose(0, 1)
    poison_rest(blocks, spans, block)
    out = torch.full((rows, heads, value_width), float("nan"), dtype=dtype, device=DEVICE)
    sums = torch.full((rows, heads), float("nan"), device=DEVICE)
    true_out, true_sums = out.double(), sums.clone()
    scale = blocks.keys.shape[3] ** -0.5
    tiles = make_tiles(spans, max(64 * kv_heads // heads, 1), kv_heads, at_once, DEVICE)
    assert sorted(row for each in tiles for row in each.rows.tolist()) == list(range(rows))
    for each in tiles:
        attend(query, blocks, each, scale, window=window, softcap=softcap, out=out, sums=sums)
        attend_reference(
            query, blocks, each, scale, window=window, softcap=softcap, out=true_out, sums=true_sums
        )
    error = (out.double() - true_out).norm(dim=-1) / true_out.norm(dim=-1)
    assert error.max() < TOLERANCE[dtype]
    assert (sums - true_sums).abs().max() < TOLERANCE[dtype] * 3


LENGTHS = [(0, 5), (70, 1), (33, 30), (0, 1), (128, 1), (90, 3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("width", "value_width", "kv_heads", "groups", "block"),
    [
        (64, 64, 3, 3, 32),
        (80, 80, 2, 1, 16),
        (96, 64, 1, 4, 64),
        (128, 128, 2, 8, 32),
        (256, 256, 1, 2, 16),
        (32, 32, 1, 2, 96),  # no power of two
    ],
)
def test_raw_blocks(
    dtype: torch.dtype, width: int, value_width: int, kv_heads: int, groups: int, block: int
) -> None:
    torch.manual_seed(width + groups)
    spans = spans_of(LENGTHS, block, random.Random(width).sample(range(64), 64))
    compare(raw_blocks(64, block, kv_heads, width, value_width, dtype), spans, kv_heads * groups)


@pytest.mark.parametrize("window", [1, 20, 64, 500])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_windows_and_soft_caps(window: int, softcap: float | None) -> None:
    torch.manual_seed(window)
    spans = spans_of(LENGTHS, 16, random.Random(1).sample(range(64), 64))
    blocks = raw_blocks(64, 16, 2, 32, 32, torch.float32)
    compare(blocks, spans, 6, window=window, softcap=softcap, at_once=16)


@pytest.mark.parametrize("bits", [(8, 8), (8, 4), (4, 4)])
@pytest.mark.parametrize(
    ("width", "block", "groups", "dtype"),
    [
        (64, 32, 3, torch.float32),
        (64, 32, 2, torch.bfloat16),
        (80, 16, 1, torch.float32),
        (96, 16, 2, torch.float16),
        (128, 64, 4, torch.float32),
    ],
)
def test_quantized_blocks_beside_raw_ones(
    bits: tuple[int, int], width: int, block: int, groups: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(width)
    raw = raw_blocks(40, block, 2, width, width, dtype)
    blocks = LayerBlocks(raw.keys, raw.values, quantized(40, block, 2, width, width, bits))
    spans = spans_of(LENGTHS, block, random.Random(width).sample(range(80), 80))
    compare(blocks, spans, 2 * groups, at_once=8)


def test_quantized_blocks_under_a_window() -> None:
    torch.manual_seed(3)
    raw = raw_blocks(40, 16, 1, 32, 32, torch.float32)
    blocks = LayerBlocks(raw.keys, raw.values, quantized(40, 16, 1, 32, 32, (4, 4)))
    spans = spans_of(LENGTHS, 16, random.Random(5).sample(range(80), 80))
    compare(blocks, spans, 4, window=40, softcap=8.0, at_once=8)


def test_a_decode_is_split_until_all_programs_run_at_once() -> None:
    assert splits(programs=4, longest=8192, at_once=264) == 32  # limited by 256 keys a split
    assert splits(programs=64, longest=8192, at_once=264) == 4
    assert splits(programs=512, longest=8192, at_once=264) == 1
    assert splits(programs=1, longest=100, at_once=264) == 1


def test_batches_of_any_size_and_length_need_no_kernel_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is a constant of a kernel compiles it again, for seconds, while requests wait."""
    constants: dict[str, set[tuple[tuple[str, object], ...]]] = {}

    class Watched:
        def __init__(self, kernel: object) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*arguments: object, **fixed: object) -> None:
                constants.setdefault(str(self.kernel), set()).add(tuple(fixed.items()))
                self.kernel[grid](*arguments, **fixed)  # type: ignore[index]

            return launch

    kernels = import_module("kvtool.engine.compute.kernels.attend"), import_module(merge.__module__)
    for module, name in zip(kernels, ("_attend", "_merge"), strict=True):
        monkeypatch.setattr(module, name, Watched(getattr(module, name)))
    for lengths in ([1100], [1100, 900], [1500, 3, 600]):  # 4 to 5 pieces each
        spans = spans_of([(length, 1) for length in lengths], 16, list(range(200)))
        compare(raw_blocks(200, 16, 1, 16, 16, torch.float32), spans, 1, at_once=24)
    assert [len(found) for found in constants.values()] == [1, 2], "pieces are merged by powers of two"


def test_a_split_without_keys_weighs_nothing() -> None:
    torch.manual_seed(0)
    spans = spans_of([(700, 1), (3, 1)], 16, list(range(64)))
    tiles = make_tiles(spans, 8, 1, at_once=16, device=DEVICE)
    assert tiles[0].splits == 2
    compare(raw_blocks(64, 16, 1, 32, 32, torch.float32), spans, 2, at_once=16)


def test_merge() -> None:
    torch.manual_seed(0)
    parts = torch.randn(5, 3, 4, 24, device=DEVICE)
    part_sums = torch.randn(5, 3, 4, device=DEVICE) * 4
    part_sums[2:, 1] = -torch.inf
    table = torch.tensor([[0, 0, 1, 9], [1, 1, 1, 2], [2, 2, 1, 5]], dtype=torch.int32, device=DEVICE)
    tiles = Tiles(table, table, 1, 5, torch.arange(3, device=DEVICE))
    out, sums = torch.empty(3, 4, 24, device=DEVICE), torch.empty(3, 4, device=DEVICE)
    merge(parts, part_sums, tiles, out, sums)
    true_out, true_sums = merge_reference(parts, part_sums)
    torch.testing.assert_close(out.double(), true_out, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(sums.double(), true_sums, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [2, 64, 80, 96, 256])
def test_rotation_is_its_own_inverse_and_spreads(width: int) -> None:
    matrix: Tensor = rotation(width, DEVICE)
    torch.testing.assert_close(matrix @ matrix, torch.eye(width, device=DEVICE))
    spread = torch.zeros(width, device=DEVICE)
    spread[0] = 1.0
    assert ((spread @ matrix) != 0).sum() == (width & -width)
