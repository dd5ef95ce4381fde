"""Kernels against their floors: bytes over the card's copy bandwidth, operations over its matrix rate."""

import math
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch

from kvtool.engine.compute.kernels.attend import attend, attend_reference
from kvtool.engine.compute.kernels.choose import choose, choose_reference
from kvtool.engine.compute.kernels.layers import LayerBlocks, empty_blocks
from kvtool.engine.compute.kernels.lift import lift
from kvtool.engine.compute.kernels.squeeze import expand, squeeze, squeeze_reference
from kvtool.engine.compute.kernels.store import store
from kvtool.engine.compute.kernels.tables import TilePlan, programs_at_once
from kvtool.engine.compute.reads import Span
from kvtool.engine.compute.sampler import Sampling

BLOCK = 32
HEADS, KV_HEADS, WIDTH = 32, 8, 128
"""An attention layer of Llama 3 8B."""

LAYERS = 32
"""How many it has."""

CACHE = 256 << 20
"""More bytes than any card's cache has."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Card:
    """What the card was measured to do. copy: bytes read and written per second. matrix: FLOP/s in bf16."""

    device: torch.device
    copy: float
    matrix: float


def seconds(work: Callable[[], Any], device: torch.device, repeats: int = 20) -> float:
    """Median time of `work` on the device, after three runs that do not count.

    What a cache of the card could hold is overwritten before each run.
    """
    if device.type != "cuda":
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun
    replay = captured(work, device)
    flush = torch.empty(CACHE, dtype=torch.uint8, device=device)
    marks = []
    for _ in range(repeats + 3):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        replay()
        end.record()
        marks.append((begin, end))
    torch.cuda.synchronize(device)
    return statistics.median(begin.elapsed_time(end) for begin, end in marks[3:]) / 1000


def captured(work: Callable[[], Any], device: torch.device) -> Callable[[], None]:
    """`work` as a graph, as a server runs it: what Python needs for a launch is not the kernel's time."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    replay: Callable[[], None] = graph.replay
    return replay


def attempt(row: Row, work: Callable[[], Row]) -> Row:
    """`row` and what `work` finds, or why it finds nothing: the other rows are worth having."""
    try:
        return row | work()
    except Exception as error:
        traceback.print_exc()
        return row | {"problem": f"{type(error).__name__}: {error}".splitlines()[0][:200]}


def measure_card(device: torch.device, size: int) -> Card:
    """Copy bandwidth over 1 GiB, matrix rate at 8,192 cubed; `size` is 8,192 but in rehearsals."""
    source = torch.empty((1 << 30) * size // 8192, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = 2 * source.nbytes / seconds(lambda: target.copy_(source), device)
    left, right = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    matrix = 2 * size**3 / seconds(lambda: left @ right, device)
    return Card(device, copy, matrix)


def correct(scale: Any, card: Card) -> Iterator[Row]:
    """Largest error of attention against float64, over the largest value: random data, poisoned outputs.

    And how many codes and tokens differ from what the references choose.
    """
    kinds = (torch.float32, 16), (torch.bfloat16, 16), (torch.bfloat16, 8), (torch.bfloat16, 4)
    widths = (WIDTH, 2 * WIDTH) if scale.divide == 1 else (WIDTH,)
    for width, (dtype, bits) in product(widths, kinds):
        row: Row = {"kernel": "attend", "dtype": str(dtype).removeprefix("torch."), "bits": bits}
        yield attempt({**row, "width": width}, partial(_attention_error, dtype, bits, width, card.device))
    for bits in (8, 4):
        yield attempt({"kernel": "squeeze", "bits": bits}, partial(_codes_that_differ, bits, card.device))
    yield attempt({"kernel": "choose"}, partial(_tokens_that_differ, card.device))


def _attention_error(dtype: torch.dtype, bits: int, width: int, device: torch.device) -> Row:
    """Two decodes, one long enough to be split, beside a prefill over cached tokens."""
    first = 0 if bits == 16 else 1
    blocks = raw_blocks(40, device, dtype, width) if bits == 16 else quantized_blocks(40, bits, device, width)
    order = [first + slot for slot in torch.randperm(40).tolist()]
    spans = [
        Span(0, 1, 20 * BLOCK - 3, order[:20]),
        Span(1, 38, 40, order[20:23]),
        Span(38, 39, 17 * BLOCK - 1, order[23:]),
    ]
    query = torch.randn(39, HEADS, width, device=device).to(dtype)
    out, sums = torch.full_like(query, torch.nan), torch.full((39, HEADS), torch.nan, device=device)
    truth, true_sums = torch.empty_like(query, dtype=torch.float64), torch.empty_like(sums)
    plan = tile_plan(spans, blocks, device)
    for tiles in plan.tiles(HEADS // KV_HEADS, KV_HEADS, width * query.element_size()):
        attend(query, blocks, tiles, width**-0.5, out=out, sums=sums)
        attend_reference(query, blocks, tiles, width**-0.5, out=truth, sums=true_sums)
    error = float((out.double() - truth).abs().max() / truth.abs().max())
    most = 1e-3 if dtype is torch.float32 else 1e-2
    return {"error": error, "holds": error < most}  # a NaN does not


def _codes_that_differ(bits: int, device: torch.device) -> Row:
    """A step that rounds the other way moves a code by one; nothing else may."""
    raw = raw_blocks(8, device)
    index = torch.arange(8, device=device)
    made, truth = (empty_blocks((1, *raw.keys.shape[:3]), WIDTH, WIDTH, (bits, bits), device) for _ in "ab")
    squeeze(raw.keys[None], raw.values[None], index, made, index)
    squeeze_reference(raw.keys[None], raw.values[None], index, truth, index)
    pairs = list(zip(made.tensors(), truth.tensors(), strict=True))
    share = sum(int((ours != theirs).sum()) for ours, theirs in pairs) / sum(
        ours.numel() for ours, _ in pairs
    )
    return {"error": share, "holds": share < 1e-2}


def _tokens_that_differ(device: torch.device) -> Row:
    """Of 64 choices, cut and not, among a vocabulary's size of logits."""
    rows = [(Sampling(0.5 + row / 32, 40 * (row % 3), 1 - row % 2 / 10, 0.0, row), row) for row in range(64)]
    logits = 3 * torch.randn(64, 9001, device=device)
    wrong = sum(
        ours != theirs
        for ours, theirs in zip(choose(logits, rows).tolist(), choose_reference(logits, rows), strict=True)
    )
    return {"error": wrong / 64, "holds": wrong <= 1}  # noise of 24 bits can make two equal


def raw_blocks(
    slots: int, device: torch.device, dtype: torch.dtype = torch.bfloat16, width: int = WIDTH
) -> LayerBlocks:
    """Random blocks."""
    shape = (slots, BLOCK, KV_HEADS, width)
    keys, values = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
    return LayerBlocks(keys, values)


def quantized_blocks(slots: int, bits: int, device: torch.device, width: int = WIDTH) -> LayerBlocks:
    """Random codes, and one raw block since a table may name both."""
    shape = (slots, BLOCK, KV_HEADS)
    packed = empty_blocks(shape, width, width, (bits, bits), device)
    for tensor in packed.tensors():
        tensor.copy_(torch.randint(0, 30, tensor.shape, dtype=torch.uint8, device=device))
    return LayerBlocks(*(torch.zeros(1, *shape[1:], width, dtype=torch.bfloat16, device=device),) * 2, packed)


def stored_bytes(blocks: LayerBlocks) -> int:
    """Bytes that a decode over all blocks must read."""
    if blocks.quantized is None:
        return blocks.keys.nbytes + blocks.values.nbytes
    return sum(tensor.nbytes for tensor in blocks.quantized.tensors())


def tile_plan(spans: list[Span], blocks: LayerBlocks, device: torch.device) -> TilePlan:
    """As the runner makes it."""
    return TilePlan(spans, device, programs_at_once(device, blocks.quantized is not None))


def attention(blocks: LayerBlocks, spans: list[Span], card: Card) -> float:
    """Seconds of one layer's attention over a packed batch."""
    rows = spans[-1].last
    query = torch.randn(rows, HEADS, WIDTH, dtype=torch.bfloat16, device=card.device)
    out = torch.empty_like(query)
    sums = torch.empty(rows, HEADS, device=card.device)
    plan = tile_plan(spans, blocks, card.device)
    tiles = plan.tiles(HEADS // KV_HEADS, KV_HEADS, 2 * WIDTH)

    def work() -> None:
        for each in tiles:
            attend(query, blocks, each, WIDTH**-0.5, out=out, sums=sums)

    return seconds(work, card.device)


def decode_rows(card: Card, batches: tuple[int, ...], context: int) -> Iterator[Row]:
    """Decode attention at `context` tokens: share of the copy bandwidth, raw and quantized."""
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
            yield {
                "kernel": f"decode {name}",
                "shape": f"{batch} x {context}",
                "seconds": took,
                "of_floor": floor / took,
            }


def prefill_rows(card: Card, lengths: tuple[int, ...], cached: int) -> Iterator[Row]:
    """Prefill attention, without and with `cached` tokens before them: share of the matrix rate."""
    for start in (0, cached):
        for length in lengths:
            blocks = raw_blocks((start + length) // BLOCK, card.device)
            took = attention(blocks, [Span(0, length, start, list(range((start + length) // BLOCK)))], card)
            pairs = length * start + length * (length + 1) // 2
            work = 4 * HEADS * WIDTH * pairs
            yield {
                "kernel": "prefill",
                "shape": f"{length} over {start}",
                "seconds": took,
                "of_floor": work / card.matrix / took,
            }


def store_rows(card: Card, tokens: int) -> Iterator[Row]:
    """Writing new keys and values, and full blocks squeezed and expanded: share of the copy bandwidth."""
    blocks = raw_blocks(tokens // BLOCK, card.device)
    key = torch.randn(tokens, KV_HEADS, WIDTH, dtype=torch.bfloat16, device=card.device)
    writes = torch.randperm(tokens, device=card.device)
    took = seconds(lambda: store(key, key, writes, blocks), card.device)
    yield {
        "kernel": "store",
        "shape": str(tokens),
        "seconds": took,
        "of_floor": 4 * key.nbytes / card.copy / took,
    }
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
            yield {
                "kernel": f"{name} int{bits}",
                "shape": str(tokens),
                "seconds": took,
                "of_floor": moved / card.copy / took,
            }


def lift_rows(card: Card, count: int) -> Iterator[Row]:
    """Blocks of 4 MiB from page-locked memory, layer by layer: share of the rate of one copy of them all."""
    shape = (count, BLOCK, KV_HEADS, WIDTH)
    elements = LAYERS * 2 * math.prod(shape[1:])
    pinned = card.device.type == "cuda"
    memory = torch.ones((count, elements), dtype=torch.bfloat16, pin_memory=pinned)
    whole = torch.empty_like(memory, device=card.device)
    floor = seconds(lambda: whole.copy_(memory, non_blocking=True), card.device)
    keys, values = (torch.zeros(shape, dtype=torch.bfloat16, device=card.device) for _ in range(2))
    sources, targets = (torch.randperm(count, device=card.device) for _ in range(2))
    part = math.prod(shape[1:])

    def work() -> None:
        for layer in range(LAYERS):
            lift(memory, sources, (layer * part, (LAYERS + layer) * part), keys, values, targets)

    took = seconds(work, card.device)
    yield {"kernel": "lift", "shape": f"{count} blocks", "seconds": took, "of_floor": floor / took}


def kernel_rows(scale: Any, card: Card) -> Iterator[Row]:
    """All kernels at the shapes that a serving day brings."""
    long = scale.tokens(8192)
    for rows in (
        decode_rows(card, (8, 32, 1) if scale.divide == 1 else (2, 1), long),
        prefill_rows(card, (scale.tokens(2048), long), long),
        lift_rows(card, 256 if scale.divide == 1 else 2),
        store_rows(card, long),
    ):
        try:
            yield from rows
        except Exception as error:
            traceback.print_exc()
            yield {
                "kernel": rows.__name__,
                "problem": f"{type(error).__name__}: {error}".splitlines()[0][:200],
            }
