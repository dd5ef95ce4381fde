"""Codecs: golden bytes, exact sizes, config round trip, error bounds, the sink, refusals.

A new codec's golden files are written once, by hand: python tests/engine/storage/test_codecs.py NAME
Files that exist are never overwritten: old shards must stay readable.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kvtool.engine.storage.codec import (
    TORCH_TYPES,
    Block,
    Codec,
    Mixed,
    bits_per_element,
    block_bytes,
    block_parts,
    decode_block,
    encode_block,
    load_codec,
    stored_parts,
)
from kvtool.engine.storage.codecs import CODECS
from kvtool.engine.storage.codecs.half import Half
from kvtool.engine.storage.codecs.int4 import Int4
from kvtool.engine.storage.codecs.int5 import Int5
from kvtool.engine.storage.codecs.int6 import Int6
from kvtool.engine.storage.codecs.int8 import Int8
from kvtool.engine.storage.codecs.k3v2 import K3V2
from kvtool.engine.storage.codecs.k8v4 import K8V4
from kvtool.engine.storage.codecs.raw import Raw
from kvtool.engine.storage.layout import DTYPES, BlockShape, LayerGroup
from kvtool.errors import KvtoolError

GOLDEN = Path(__file__).parents[2] / "data" / "codecs"
LAYERS = [(2, 6, 6), (2, 6, 6), (1, 4, 2)]
"""Two shapes of layers, so that groups and unequal key and value widths are in the golden files."""

EXACT = {"raw", "lossless"}
LARGEST = {"raw": 0.0, "lossless": 0.0, "half": 0.0, "int8": 0.1}
LARGEST |= {"int6": 0.3, "k8v4": 1.0, "int5": 0.5, "int4": 1.0, "k3v2": 4.0}
"""Largest error on the made-up block, whose numbers are multiples of 1/16 within 8."""


def made_up_block(shape: BlockShape, seed: int = 0) -> Block:
    """Numbers that are exact in every dtype: small multiples of 1/16, the same on every platform."""
    block = []
    at = seed
    for group in shape.groups:
        for _ in range(group.layers):
            pair = []
            for width in (group.key_dim, group.value_dim):
                count = shape.block_size * group.kv_heads * width
                ids = np.arange(at, at + count, dtype=np.uint64)
                numbers = (ids * np.uint64(2654435761) % np.uint64(251)).astype(np.float64) / 16 - 7.5
                at += count
                array = torch.tensor(numbers).reshape(shape.block_size, group.kv_heads, width)
                pair.append(array.to(TORCH_TYPES[DTYPES[shape.dtype]]))
            block.append((pair[0], pair[1]))
    return block


@pytest.mark.parametrize("first", [True, False], ids=["first", "inner"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CODECS.names())
def test_golden_bytes(name: str, dtype: str, first: bool) -> None:
    shape = BlockShape.of_layers(8, dtype, LAYERS)
    codec = load_codec({"codec": name})
    encoded = encode_block(codec, shape, made_up_block(shape), first)
    golden = (GOLDEN / f"{name}-{dtype}-{'first' if first else 'inner'}.bin").read_bytes()
    if not codec.compressed:  # zstd may choose other bytes in another version: old ones must stay readable
        assert encoded == golden
    decoded = decode_block(codec, shape, bytearray(golden), first)
    limit = LARGEST[name]
    for (keys, values), (found_keys, found_values) in zip(made_up_block(shape), decoded, strict=True):
        assert found_keys.dtype == keys.dtype and found_values.shape == values.shape
        assert (found_keys.float() - keys.float()).abs().max() <= limit
        assert (found_values.float() - values.float()).abs().max() <= limit


def test_every_codec_has_golden_files_and_no_file_is_stray() -> None:
    expected = {
        f"{name}-{dtype}-{place}.bin"
        for name in CODECS.names()
        for dtype in ("float32", "bfloat16")
        for place in ("first", "inner")
    }
    assert {path.name for path in GOLDEN.glob("*.bin")} == expected


@pytest.mark.parametrize("name", CODECS.names())
def test_config_round_trip(name: str) -> None:
    codec = CODECS.load(name)()
    assert codec.config()["codec"] == name == codec.name
    assert load_codec(codec.config()) == codec


def test_unknown_codec_and_unknown_setting_are_named() -> None:
    with pytest.raises(KvtoolError, match="unknown codec 'int3'"):
        load_codec({"codec": "int3"})
    with pytest.raises(KvtoolError, match=r"codec int8: .*group"):
        load_codec({"codec": "int8", "group": 64})


def test_bits_per_element_are_exact() -> None:
    embedded = BlockShape.of_layers(32, "bfloat16", [(3, 64, 64)] * 30)
    wide = BlockShape.of_layers(64, "bfloat16", [(8, 128, 128)])
    assert bits_per_element(Raw(), embedded) == bits_per_element(Half(), embedded) == 16
    assert bits_per_element(Raw(), BlockShape.of_layers(32, "float32", [(3, 64, 64)])) == 32
    assert bits_per_element(Half(), BlockShape.of_layers(32, "float32", [(3, 64, 64)])) == 16
    # A byte per 32 tokens of a channel and per half a head, twice that where there is an offset.
    assert bits_per_element(Int8(), embedded) == 8 + (8 / 32 + 8 / 32) / 2 == 8.25
    assert bits_per_element(K8V4(), embedded) == (8 + 8 / 32 + 4 + 16 / 32) / 2 == 6.375
    assert bits_per_element(Int4(), embedded) == 4 + (16 / 32 + 16 / 32) / 2 == 4.5
    assert bits_per_element(Int5(), embedded) == 5.5 and bits_per_element(Int6(), embedded) == 6.5
    assert bits_per_element(K3V2(), embedded) == (3 + 16 / 32 + 2 + 16 / 32) / 2 == 3
    found = [bits_per_element(codec(), wide) for codec in (Int8, Int6, K8V4, Int5, Int4, K3V2)]
    assert found == [8.1875, 6.375, 6.25, 5.375, 4.375, 2.875]
    # The sink takes 16 bits in place of a token's codes, and has no grids of its own.
    assert bits_per_element(Int8(), embedded, first=True) == 8.25 + (16 - 8 - 8 / 32 / 2) / 32
    assert bits_per_element(Int4(), embedded, first=True) == 4.5 + (16 - 4 - 16 / 32 / 2) / 32
    mixed = Mixed(("int4",) * 20 + ("k8v4",) * 9 + ("raw",))
    assert bits_per_element(mixed, embedded) == (20 * 4.5 + 9 * 6.375 + 16) / 30


@pytest.mark.parametrize("name", CODECS.names())
def test_declared_parts_are_what_is_written(name: str) -> None:
    shape = BlockShape.of_layers(8, "float32", LAYERS)
    codec = load_codec({"codec": name})
    for first in (True, False):
        data = encode_block(codec, shape, made_up_block(shape), first)
        assert sum(part.nbytes for part in stored_parts(codec, shape, first, len(data))) == len(data)
        names = [part.name for part in block_parts(codec, shape, first)]
        assert len(set(names)) == len(names) and all(name.endswith((".0", ".1")) for name in names)
        if not codec.compressed:
            assert stored_parts(codec, shape, first, len(data)) == block_parts(codec, shape, first)
            assert len(data) == block_bytes(codec, shape, first)


@pytest.mark.parametrize("name", CODECS.names())
@pytest.mark.parametrize("size", [1, 5, 33])
def test_any_block_size_and_head_size_goes_through(name: str, size: int) -> None:
    shape = BlockShape.of_layers(size, "float16", [(1, 1, 1), (3, 7, 96), (2, 80, 3)])
    codec = load_codec({"codec": name})
    block = made_up_block(shape)
    for first in (True, False):
        found = decode_block(codec, shape, bytearray(encode_block(codec, shape, block, first)), first)
        for (keys, values), (found_keys, found_values) in zip(block, found, strict=True):
            assert found_keys.shape == keys.shape and found_values.shape == values.shape
            for was, got in ((keys, found_keys), (values, found_values)):
                wrong = (got.float() - was.float()).square().mean().sqrt()  # rotation spreads an error
                assert wrong <= LARGEST[name]
            if first:
                assert torch.equal(found_keys[0], keys[0]) and torch.equal(found_values[0], values[0])


def test_mixed_layers_are_each_what_their_codec_makes_of_them() -> None:
    shape = BlockShape.of_layers(8, "float32", LAYERS)
    block = made_up_block(shape)
    mixed = load_codec({"codec": "mixed", "layers": ["int4", "int8", "int4"]})
    assert mixed == load_codec(mixed.config())
    found = decode_block(mixed, shape, bytearray(encode_block(mixed, shape, block, True)), True)
    for layer, codec in enumerate((Int4(), Int8(), Int4())):
        alone = BlockShape.of_layers(8, "float32", [LAYERS[layer]])
        data = bytearray(encode_block(codec, alone, [block[layer]], True))
        ((keys, values),) = decode_block(codec, alone, data, True)
        assert torch.equal(found[layer][0], keys) and torch.equal(found[layer][1], values)
    with pytest.raises(KvtoolError, match="a mixed codec for 3 layers, the model has 1"):
        block_parts(mixed, BlockShape.of_layers(8, "float32", LAYERS[:1]), True)
    with pytest.raises(KvtoolError, match="unknown codec 'int3'"):
        load_codec({"codec": "mixed", "layers": ["int3"]})
    with pytest.raises(KvtoolError, match=r"codec mixed: .*bits"):
        load_codec({"codec": "mixed", "layers": ["int4"], "bits": 3})


def round_trip(codec: Codec, keys: torch.Tensor, values: torch.Tensor, first: bool) -> tuple[np.ndarray, ...]:
    group = LayerGroup(keys.shape[0], keys.shape[2], keys.shape[3], values.shape[3])
    found = codec.decode(codec.encode(keys, values, first), group, first, keys.dtype)
    return tuple(tensor.float().numpy() for tensor in found)


finite = st.floats(-1e4, 1e4, width=32)


@settings(max_examples=60, deadline=None)
@given(
    keys=hnp.arrays(np.float32, (1, 8, 2, 5), elements=finite),
    values=hnp.arrays(np.float32, (1, 8, 2, 6), elements=finite),
    first=st.booleans(),
)
def test_int8_restores_to_within_half_a_step(keys: np.ndarray, values: np.ndarray, first: bool) -> None:
    found_keys, found_values = round_trip(Int8(), torch.tensor(keys), torch.tensor(values), first)
    rest = slice(1, None) if first else slice(None)
    # Written out anew: the largest magnitude over tokens (keys) or half the channels (values) over 127, and
    # what rounding up to a byte can add to it: an eighth, or the smallest step.
    halves = values.reshape(1, 8, 2, 2, 3), found_values.reshape(1, 8, 2, 2, 3)
    for array, found, axis in ((keys, found_keys, 1), (*halves, 4)):
        largest = np.abs(array[:, rest]).max(axis=axis, keepdims=True).astype(np.float64) / 127
        bound = 0.5 * (largest * (1 + 1 / 8) * (1 + 2**-10) + 2**-17) * (1 + 1e-5)
        assert (np.abs(found[:, rest].astype(np.float64) - array[:, rest]) <= bound).all()
    if first:
        np.testing.assert_array_equal(found_keys[:, 0], keys[:, 0])
        np.testing.assert_array_equal(found_values[:, 0], values[:, 0])


@settings(max_examples=60, deadline=None)
@given(
    array=hnp.arrays(np.float32, (1, 8, 1, 8), elements=finite),
    first=st.booleans(),
    codec=st.sampled_from([Int6(), K8V4(), Int5(), Int4(), K3V2()]),
)
def test_rotated_codecs_restore_to_within_half_a_step_of_the_rotated_range(
    array: np.ndarray, first: bool, codec: Codec
) -> None:
    found_keys, found_values = round_trip(codec, torch.tensor(array), torch.tensor(array), first)
    rest = slice(1, None) if first else slice(None)
    matrix = np.array([[1.0]])
    for _ in range(3):
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    turned = array[:, rest].astype(np.float64) @ matrix / 8**0.5
    rounding = 1e-6 * np.abs(array[:, rest]).max(initial=0)  # rotating mixes a head's channels in float32
    for found, bits, axis in ((found_keys, codec.keys.bits, 1), (found_values, codec.values.bits, 4)):
        if bits == 8:
            continue  # k8v4's keys are int8's
        groups = turned if axis == 1 else turned.reshape(*turned.shape[:3], 2, 4)
        reach = np.abs(groups).max(axis, keepdims=True)
        low, high = groups.min(axis, keepdims=True), groups.max(axis, keepdims=True)
        step = np.maximum((high - low) / (2**bits - 1), np.abs(low) / 127)
        bound = 0.5 * (step * (1 + 1 / 8) * (1 + 2**-9) + 2**-17) + 1e-5 * reach + rounding
        error = np.abs(found[:, rest].astype(np.float64) @ matrix / 8**0.5 - turned)
        assert (error.reshape(groups.shape) <= bound).all()


@settings(max_examples=30, deadline=None)
@given(
    array=hnp.arrays(
        np.float32, (8, 1, 4), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
    )
)
def test_raw_is_exact(array: np.ndarray) -> None:
    shape = BlockShape.of_layers(8, "float32", [(1, 4, 4)])
    block = [(torch.tensor(array), torch.tensor(-array))]
    ((keys, values),) = decode_block(Raw(), shape, bytearray(encode_block(Raw(), shape, block, True)), True)
    assert keys.numpy().tobytes() == array.tobytes() and values.numpy().tobytes() == (-array).tobytes()


def test_the_sink_does_not_widen_the_scales() -> None:
    keys = torch.ones(1, 8, 1, 4)
    keys[:, 0] = 3000.0  # an attention sink's outlier
    for codec in (Int8(), K8V4(), Int4(), K3V2()):
        decoded, _ = round_trip(codec, keys, keys, True)
        assert np.abs(decoded[:, 1:] - 1).max() < 0.01 and (decoded[:, 0] == 3000).all()
        coarse, _ = round_trip(codec, keys, keys, False)
        assert np.abs(coarse[:, 1:] - 1).max() > 0.5


def test_fp16_extremes_come_back_finite() -> None:
    edge = torch.full((1, 8, 1, 4), 65504.0).half()
    for codec in (Int8(), K8V4(), Int4(), K3V2()):
        decoded, values = round_trip(codec, edge, -edge, False)
        assert np.isfinite(values).all() and (np.abs(decoded - 65504) <= 65504 / 200).all()


@pytest.mark.parametrize("codec", [Int8(), K8V4(), Int4(), K3V2()], ids=lambda codec: codec.name)
def test_constant_channels_zeros_and_denormals(codec: Codec) -> None:
    constant = torch.full((1, 8, 1, 8), 5.0) + torch.arange(8) * 100  # each channel constant over the tokens
    for numbers, bound in ((constant, 3.2), (constant * 0, 0.0), (torch.full((1, 8, 1, 8), 1e-40), 1e-5)):
        keys, values = round_trip(codec, numbers, constant * 0, False)
        assert np.abs(keys - numbers.numpy()).max() <= bound and (values == 0).all()
    outlier = torch.zeros(1, 8, 1, 8)
    outlier[0, 3, 0, 2] = 1e4
    keys, _ = round_trip(codec, outlier, outlier, False)
    assert np.isfinite(keys).all() and np.abs(keys - outlier.numpy()).max() <= 1e4 / 2


def test_what_cannot_be_stored_is_refused() -> None:
    shape = BlockShape.of_layers(8, "float32", [(1, 4, 4)])
    good = torch.zeros(8, 1, 4)
    bad = good.clone()
    bad[3, 0, 1] = torch.nan
    with pytest.raises(KvtoolError, match="values are not finite"):
        encode_block(Raw(), shape, [(good, bad)], False)
    with pytest.raises(KvtoolError, match="too large"):
        encode_block(Int8(), shape, [(good + 1e9, good)], False)
    with pytest.raises(KvtoolError, match="too large for codec half"):
        encode_block(Half(), shape, [(good, good + 7e4)], False)


def write_golden(name: str) -> None:
    """The golden files of a new codec."""
    codec = load_codec({"codec": name})
    for dtype in ("float32", "bfloat16"):
        shape = BlockShape.of_layers(8, dtype, LAYERS)
        for place, first in (("first", True), ("inner", False)):
            with (GOLDEN / f"{name}-{dtype}-{place}.bin").open("xb") as handle:
                handle.write(encode_block(codec, shape, made_up_block(shape), first))


if __name__ == "__main__":
    write_golden(sys.argv[1])
