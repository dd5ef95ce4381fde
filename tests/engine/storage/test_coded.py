"""Encoded blocks into arenas and out of them, many at a time: what the codec gives one by one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.kernels.attend import attend, attend_reference
from kvtool.engine.compute.kernels.layers import LayerBlocks
from kvtool.engine.compute.kernels.tables import make_tiles
from kvtool.engine.compute.load import load_model
from kvtool.engine.compute.quantized_arena import QuantizedArena
from kvtool.engine.compute.reads import Span
from kvtool.engine.storage.codec import (
    BlockCodec,
    decode_block,
    decode_blocks,
    encode_block,
    encode_blocks,
    load_codec,
)
from kvtool.engine.storage.codecs import CODECS
from kvtool.engine.storage.coded import Encoded, codes_in, encode_from, place_blocks
from kvtool.engine.storage.faults import KEYS, RANGE, VALUES, faults
from kvtool.engine.storage.host import EncodedHost
from kvtool.engine.storage.lanes import Lanes
from kvtool.engine.storage.layout import BlockShape
from kvtool.engine.storage.leaving import Leaving
from kvtool.errors import KvtoolError

SIZE = 16
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Any:
    return load_model(str(tiny_model), "cpu", "auto")


def shape_of(model: Any) -> BlockShape:
    return BlockShape.of_layers(SIZE, model.dtype_name, model.config.layer_shapes)


def filled(model: Any) -> Arena:
    arena = Arena(model, 12, SIZE)
    for tensor in (*arena.keys, *arena.values):
        tensor.normal_(generator=torch.Generator().manual_seed(tensor.shape[-1]))
    return arena


def quantized(model: Any, codec: str) -> QuantizedArena:
    made: Any = load_codec({"codec": codec})
    return QuantizedArena(model, 12, SIZE, made, 10)


@pytest.mark.parametrize("name", CODECS.names())
def test_many_blocks_are_coded_as_each_one_is(model: Any, name: str) -> None:
    codec, shape, arena = load_codec({"codec": name}), shape_of(model), filled(model)
    slots, firsts = [3, 0, 7, 11, 5], [False, True, False, True, False]
    made = encode_from(arena, codec, shape, slots, firsts)
    for slot, first, data in zip(slots, firsts, made, strict=True):
        assert data() == encode_block(codec, shape, arena.read_block(slot), first)


@pytest.mark.parametrize("kind", ["raw", "raw by the kernels", "int8", "int4"])
@pytest.mark.parametrize("names", [["int8", "k8v4", "int4"], ["raw", "lossless", "k3v2", "half"]])
def test_blocks_are_placed_as_each_one_decodes(model: Any, kind: str, names: list[str]) -> None:
    shape, source = shape_of(model), filled(model)
    target = quantized(model, kind) if kind.startswith("int") else Arena(model, 12, SIZE)
    target.kernels = kind == "raw by the kernels"
    blocks, wanted = [], []
    for number, slot in enumerate(range(9)):
        codec, first = load_codec({"codec": names[number % len(names)]}), number in (2, 4)
        data = encode_block(codec, shape, source.read_block(slot), first)
        blocks.append(Encoded(codec, data, first))
        wanted.append(decode_block(codec, shape, bytearray(data), first))
    slots = [11, 4, 0, 9, 1, 2, 10, 5, 7]
    place_blocks(target, shape, slots, blocks)
    for slot, block, pairs in zip(slots, blocks, wanted, strict=True):
        exact = not isinstance(target, QuantizedArena) or block.first or block.codec == target.codec
        if isinstance(target, QuantizedArena):
            assert target.is_raw(slot) == block.first
        for pair, other in zip(target.read_block(slot), pairs, strict=True):
            for tensor, truth in zip(pair, other, strict=True):
                if exact:
                    torch.testing.assert_close(tensor, truth, atol=1e-5, rtol=1e-5)
                else:
                    assert (tensor - truth).norm() < 0.15 * truth.norm(), "rounded once more"


@pytest.mark.parametrize("size", [8, 24])
def test_blocks_of_a_size_that_the_kernel_does_not_take(model: Any, size: int) -> None:
    shape = BlockShape.of_layers(size, model.dtype_name, model.config.layer_shapes)
    codec = load_codec({"codec": "int4"})
    source, target = Arena(model, 3, size), Arena(model, 3, size)
    for tensor in (*source.keys, *source.values):
        tensor.normal_()
    target.kernels = True
    data = encode_block(codec, shape, source.read_block(1), False)
    place_blocks(target, shape, [2], [Encoded(codec, data, False)])
    for pair, other in zip(
        target.read_block(2), decode_block(codec, shape, bytearray(data), False), strict=True
    ):
        assert torch.equal(pair[0], other[0]) and torch.equal(pair[1], other[1])


@pytest.mark.parametrize("name", ["int8", "k8v4", "int4"])
def test_quantized_blocks_leave_as_they_came(model: Any, name: str) -> None:
    codec, shape, source = load_codec({"codec": name}), shape_of(model), filled(model)
    target = quantized(model, name)
    data = encode_from(source, codec, shape, [1, 2, 3], [False] * 3)
    place_blocks(target, shape, [8, 0, 4], [Encoded(codec, each(), False) for each in data])
    again = encode_from(target, codec, shape, [4, 8, 0], [False] * 3)
    for slot in (4, 8, 0):  # written again before anybody has asked
        target.write_block(slot, source.read_block(9))
    target.squeeze([4, 8, 0])
    assert [each() for each in again] == [data[2](), data[0](), data[1]()]


@pytest.mark.parametrize("name", CODECS.names())
@pytest.mark.parametrize(
    ("number", "reason"), [(torch.nan, "values are not"), (-torch.inf, "values are not")]
)
def test_one_block_that_cannot_be_coded_costs_no_other(
    model: Any, name: str, number: float, reason: str
) -> None:
    arena = filled(model)
    arena.values[1][5, 3, 1, 2] = number
    codec, shape = load_codec({"codec": name}), shape_of(model)
    made = encode_from(arena, codec, shape, [4, 5, 6], [False] * 3)
    with pytest.raises(KvtoolError, match=reason):
        made[1]()
    for slot, data in ((4, made[0]), (6, made[2])):
        assert data() == encode_block(codec, shape, arena.read_block(slot), False)


@pytest.mark.parametrize("name", sorted({"int8", "int4", "half", "k3v2"} & set(CODECS.names())))
def test_an_element_beyond_the_codec_is_found_with_the_bytes(model: Any, name: str) -> None:
    arena = filled(model)
    arena.keys[0][7, 4, 0, 1] = 1e8
    codec, shape = load_codec({"codec": name}), shape_of(model)
    made = encode_from(arena, codec, shape, [7, 8], [False, False])
    with pytest.raises(KvtoolError, match=f"too large for codec {name}"):
        made[0]()
    assert made[1]() == encode_block(codec, shape, arena.read_block(8), False)


def test_a_sum_that_overflows_is_no_fault() -> None:
    edge = torch.full((3, 4, 2, 8), 3e38)
    edge[1, 2, 1, 5] = torch.inf
    assert faults(edge, edge, None).tolist() == [0, KEYS, 0]
    assert faults(-edge[:1], edge[1:2], torch.tensor([False])).tolist() == [VALUES]
    assert faults(edge[:2], edge[:2], torch.tensor([False, True])).tolist() == [RANGE, KEYS]


def test_a_tier_drops_what_it_cannot_code_when_the_bytes_are_asked_for(
    model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    codec, shape, arena = load_codec({"codec": "int8"}), shape_of(model), filled(model)
    host = EncodedHost(shape, codec)
    host.keep(arena, [1, 2], [0, 1], [False, False])
    arena.keys[0][5] = torch.nan
    host.keep(arena, [4, 5], [2, 1], [False, False])  # slot 1 gets a block that it cannot hold
    assert [host.holds(slot) for slot in range(3)] == [True, False, True]
    assert "keys are not finite" in caplog.text
    with pytest.raises(KvtoolError, match="could not be encoded"):
        host.encoded(1, False)
    assert host.encoded(2, False).data == encode_block(codec, shape, arena.read_block(4), False)


@pytest.mark.parametrize("name", ["int8", "k8v4", "int4"])
@pytest.mark.parametrize(("block", "width"), [(16, 64), (32, 80), (64, 96), (32, 128), (16, 256)])
def test_attention_over_stored_bytes_is_attention_over_decoded_blocks(
    name: str, block: int, width: int
) -> None:
    """The adapter's views, unchanged, against numbers from the codec in float64."""
    torch.manual_seed(width)
    codec: BlockCodec = load_codec({"codec": name})
    shape = BlockShape.of_layers(block, "float32", [(2, width, width)] * 2)
    blocks = [(torch.randn(3, block, 2, width), torch.randn(3, block, 2, width)) for _ in range(2)]
    data, _ = encode_blocks(codec, shape, blocks, False)
    (views,) = codes_in(codec, shape, data)
    decoded = decode_blocks(codec, shape, data, False)
    query = torch.randn(3, 4, width)
    span = Span(0, 3, 3 * block - 3, [1, 3, 2])
    (tiles,) = make_tiles([span], 8, 2, 1, CPU)
    for layer in range(2):
        empty = torch.zeros(1, block, 2, width)
        coded = LayerBlocks(empty, empty, views.layer(layer).map(torch.Tensor.contiguous))
        keys, values = decoded[layer]
        out, sums = torch.empty(3, 4, width), torch.empty(3, 4)
        true_out, true_sums = torch.empty(3, 4, width, dtype=torch.float64), torch.empty(3, 4)
        attend(query, coded, tiles, width**-0.5, out=out, sums=sums)
        exact = LayerBlocks(keys, values)
        (plain,) = make_tiles([Span(0, 3, span.start, [0, 2, 1])], 8, 2, 1, CPU)
        attend_reference(query, exact, plain, width**-0.5, out=true_out, sums=true_sums)
        torch.testing.assert_close(out.double(), true_out, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(sums, true_sums, atol=1e-4, rtol=0)


class Late:
    """A lane, its work and the event behind it: nothing is done before somebody waits."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def run(self, work: Callable[[], None], after: Any = (), uses: Any = ()) -> "Late":
        assert after == ["mark"], "behind what has been computed"
        self.work.append(work)
        return self

    def synchronize(self) -> None:
        while self.work:
            self.work.pop()()


def test_what_leaves_is_awaited_when_it_is_used() -> None:
    late: Any = Late()
    lanes = Lanes(late, late, lambda: "mark")  # type: ignore[arg-type, return-value]
    data = torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=torch.uint8)
    flags = torch.tensor([0, 0, VALUES], dtype=torch.uint8)
    shape = BlockShape.of_layers(8, "float16", [(1, 4, 4)])
    leaving = Leaving(load_codec({"codec": "raw"}), shape, data, flags, lanes)
    flags[0] = KEYS  # the check may still be running when the copy is queued
    assert len(late.work) == 1
    assert leaving.row(1) == bytes([3, 4]) and not late.work
    for row, noun in ((0, "keys"), (2, "values")):
        with pytest.raises(KvtoolError, match=f"{noun} are not finite in float16"):
            leaving.row(row)
