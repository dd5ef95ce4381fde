"""Kernels against their floors: bytes over the card's copy bandwidth, operations over its matrix rate."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from kvtool.engine.compute.kernels.attend import attend
from kvtool.engine.compute.kernels.layers import LayerBlocks, empty_blocks
from kvtool.engine.compute.kernels.squeeze import expand, squeeze
from kvtool.engine.compute.kernels.store import store
from kvtool.engine.compute.kernels.tables import TilePlan, processors
from kvtool.engine.compute.reads import Span

BLOCK = 32
HEADS, KV_HEADS, WIDTH = 32, 8, 128
"""An attention layer of Llama 3 8B."""


@dataclass(frozen=True)
class Card:
    """What the card was measured to do. copy: bytes read and written per second. matrix: FLOP/s in bf16."""

    device: torch.device
    copy: float
    matrix: float


def seconds(work: Callable[[], Any], device: torch.device, repeats: int = 20) -> float:
    """Median time of `work` on the device, after three runs that do not count."""
    times = []
    for number in range(repeats + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize(device)
        if number >= 3:
            times.append(begin.elapsed_time(end) / 1000)
    return statistics.median(times)


def measure_card(device: torch.device) -> Card:
    """Copy bandwidth over 1 GiB, matrix rate at 8,192 cubed."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = 2 * source.nbytes / seconds(lambda: target.copy_(source), device)
    size = 8192
    left, right = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    matrix = 2 * size**3 / seconds(lambda: left @ right, device)
    return Card(device, copy, matrix)


def raw_blocks(slots: int, device: torch.device) -> LayerBlocks:
    """Random blocks in bf16."""
    shape = (slots, BLOCK, KV_HEADS, WIDTH)
    keys, values = (torch.randn(shape, dtype=torch.bfloat16, device=device) for _ in range(2))
    return LayerBlocks(keys, values)


def quantized_blocks(slots: int, bits: int, device: torch.device) -> LayerBlocks:
    """Random codes, and one raw block since a table may name both."""
    shape = (slots, BLOCK, KV_HEADS)
    packed = empty_blocks(shape, WIDTH, WIDTH, (bits, bits), device)
    for tensor in packed.tensors():
        tensor.copy_(torch.randint(0, 30, tensor.shape, dtype=torch.uint8, device=device))
    return LayerBlocks(*(torch.zeros(1, *shape[1:], WIDTH, dtype=torch.bfloat16, device=device),) * 2, packed)


def stored_bytes(blocks: LayerBlocks) -> int:
    """Bytes that a decode over all blocks must read."""
    if blocks.quantized is None:
        return blocks.keys.nbytes + blocks.values.nbytes
    return sum(tensor.nbytes for tensor in blocks.quantized.tensors())


def attention(blocks: LayerBlocks, spans: list[Span], card: Card) -> float:
    """Seconds of one layer's attention over a packed batch."""
    rows = spans[-1].last
    query = torch.randn(rows, HEADS, WIDTH, dtype=torch.bfloat16, device=card.device)
    out = torch.empty_like(query)
    sums = torch.empty(rows, HEADS, device=card.device)
    plan = TilePlan(spans, card.device, processors(card.device))
    tiles = plan.tiles(HEADS // KV_HEADS, KV_HEADS, 2 * WIDTH)

    def work() -> None:
        for each in tiles:
            attend(query, blocks, each, WIDTH**-0.5, out=out, sums=sums)

    return seconds(work, card.device)


def decode_rows(card: Card, batches: tuple[int, ...], context: int) -> list[dict[str, Any]]:
    """Decode attention at `context` tokens: share of the copy bandwidth, raw and quantized."""
    rows = []
    for batch in batches:
        each = context // BLOCK
        order = torch.randperm(batch * each, generator=torch.Generator().manual_seed(0)).tolist()
        for name in ("raw", "int8", "int4"):
            if name == "raw":
                blocks, first = raw_blocks(batch * each, card.device), 0
            else:
                blocks, first = quantized_blocks(batch * each, int(name[3]), card.device), 1
            spans = [
                Span(
                    row,
                    row + 1,
                    context - 1,
                    [first + slot for slot in order[row * each : (row + 1) * each]],
                )
                for row in range(batch)
            ]
            took = attention(blocks, spans, card)
            # A copy moves every byte twice, a decode reads it once.
            floor = stored_bytes(blocks) / card.copy
            rows.append(
                {
                    "kernel": f"decode {name}",
                    "shape": f"{batch} x {context}",
                    "seconds": took,
                    "of_floor": floor / took,
                }
            )
    return rows


def prefill_rows(card: Card, lengths: tuple[int, ...], cached: int) -> list[dict[str, Any]]:
    """Prefill attention, without and with `cached` tokens before them: share of the matrix rate."""
    rows = []
    for start in (0, cached):
        for length in lengths:
            blocks = raw_blocks((start + length) // BLOCK, card.device)
            took = attention(blocks, [Span(0, length, start, list(range((start + length) // BLOCK)))], card)
            pairs = length * start + length * (length + 1) // 2
            work = 4 * HEADS * WIDTH * pairs
            rows.append(
                {
                    "kernel": "prefill",
                    "shape": f"{length} over {start}",
                    "seconds": took,
                    "of_floor": work / card.matrix / took,
                }
            )
    return rows


def store_rows(card: Card, tokens: int) -> list[dict[str, Any]]:
    """Writing new keys and values, and full blocks squeezed and expanded: share of the copy bandwidth."""
    blocks = raw_blocks(tokens // BLOCK, card.device)
    key = torch.randn(tokens, KV_HEADS, WIDTH, dtype=torch.bfloat16, device=card.device)
    writes = torch.randperm(tokens, device=card.device)
    took = seconds(lambda: store(key, key, writes, blocks), card.device)
    found = [
        {
            "kernel": "store",
            "shape": str(tokens),
            "seconds": took,
            "of_floor": 4 * key.nbytes / card.copy / took,
        }
    ]
    index = torch.arange(tokens // BLOCK, device=card.device)
    keys, values = blocks.keys[None], blocks.values[None]  # of one layer
    for bits in (8, 4):
        packed = empty_blocks((1, *blocks.keys.shape[:3]), WIDTH, WIDTH, (bits, bits), card.device)
        moved = stored_bytes(blocks) + stored_bytes(LayerBlocks(keys, values, packed))
        for name, work in (
            ("squeeze", partial(squeeze, keys, values, index, packed, index)),
            ("expand", partial(expand, packed, index, keys, values, index)),
        ):
            took = seconds(work, card.device)
            found.append(
                {
                    "kernel": f"{name} int{bits}",
                    "shape": str(tokens),
                    "seconds": took,
                    "of_floor": moved / card.copy / took,
                }
            )
    return found


def kernel_rows(card: Card) -> list[dict[str, Any]]:
    """All kernels at the shapes that a serving day brings."""
    return [
        *store_rows(card, 8192),
        *decode_rows(card, (1, 8, 32), 8192),
        *prefill_rows(card, (2048, 8192), 8192),
    ]
