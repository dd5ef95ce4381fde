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
    bits_per_element,
    block_bytes,
    block_parts,
    decode_block,
    encode_block,
)
from kvtool.engine.storage.codecs import CODECS, load_codec
from kvtool.engine.storage.codecs.int8 import Int8
from kvtool.engine.storage.codecs.raw import Raw
from kvtool.engine.storage.layout import DTYPES, BlockShape
from kvtool.errors import KvtoolError

GOLDEN = Path(__file__).parents[2] / "data" / "codecs"
LAYERS = [(2, 6, 6), (2, 6, 6), (1, 4, 2)]
"""Two shapes of layers, so that groups and unequal key and value widths are in the golden files."""


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
    assert encoded == golden
    decoded = decode_block(codec, shape, bytearray(golden), first)
    limit = 0.0 if name == "raw" else 0.1
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
    assert bits_per_element(Raw(), embedded) == 16
    assert bits_per_element(Raw(), BlockShape.of_layers(32, "float32", [(3, 64, 64)])) == 32
    # 8 bits, 16-bit key scales per 32 tokens, 16-bit value scales per 64 channels, halves averaged.
    assert bits_per_element(Int8(), embedded) == 8 + (16 / 32 + 16 / 64) / 2 == 8.375
    assert bits_per_element(Int8(), BlockShape.of_layers(64, "bfloat16", [(8, 128, 128)])) == 8.1875
    # The sink costs 8 more bits for one token in 32, and has no value scale.
    assert bits_per_element(Int8(), embedded, first=True) == 8.375 + 8 / 32 - 16 / 64 / 32 / 2


@pytest.mark.parametrize("name", CODECS.names())
def test_declared_parts_are_what_is_written(name: str) -> None:
    shape = BlockShape.of_layers(8, "float32", LAYERS)
    codec = load_codec({"codec": name})
    for first in (True, False):
        data = encode_block(codec, shape, made_up_block(shape), first)
        assert len(data) == block_bytes(codec, shape, first)
        names = [part.name for part in block_parts(codec, shape, first)]
        assert len(set(names)) == len(names) and all(name.endswith((".0", ".1")) for name in names)


finite = st.floats(-1e4, 1e4, width=32)


@settings(max_examples=60, deadline=None)
@given(
    keys=hnp.arrays(np.float32, (1, 8, 2, 5), elements=finite),
    values=hnp.arrays(np.float32, (1, 8, 2, 3), elements=finite),
    first=st.booleans(),
)
def test_int8_restores_to_within_half_a_scale(keys: np.ndarray, values: np.ndarray, first: bool) -> None:
    codec = Int8()
    parts = codec.encode(torch.tensor(keys), torch.tensor(values), first)
    found_keys, found_values = codec.decode(parts, first, torch.float32)
    rest = slice(1, None) if first else slice(None)
    # Written out anew: the largest magnitude over tokens (keys) or channels (values) over 127, and what
    # fp16 can add to it: 2**-10 of it, or its smallest step.
    for array, found, axis in ((keys, found_keys.numpy(), 1), (values, found_values.numpy(), 3)):
        scale = np.abs(array[:, rest]).max(axis=axis, keepdims=True).astype(np.float64) / 127
        bound = 0.5 * (scale * (1 + 2**-10) + 2**-24) * (1 + 1e-5)
        assert (np.abs(found[:, rest].astype(np.float64) - array[:, rest]) <= bound).all()
    if first:
        np.testing.assert_array_equal(found_keys[:, 0].numpy(), keys[:, 0])
        np.testing.assert_array_equal(found_values[:, 0].numpy(), values[:, 0])


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
    decoded, _ = Int8().decode(Int8().encode(keys, keys, True), True, torch.float32)
    assert (decoded[:, 1:] - 1).abs().max() < 1e-3 and (decoded[:, 0] == 3000).all()
    coarse, _ = Int8().decode(Int8().encode(keys, keys, False), False, torch.float32)
    assert (coarse[:, 1:] - 1).abs().max() > 0.5


def test_fp16_extremes_come_back_finite() -> None:
    edge = torch.full((1, 8, 1, 4), 65504.0).half()
    decoded, values = Int8().decode(Int8().encode(edge, -edge, False), False, torch.float16)
    assert torch.isfinite(decoded).all() and torch.isfinite(values).all()
    assert (decoded.float() >= 65504 * 0.999).all()


def test_what_cannot_be_stored_is_refused() -> None:
    shape = BlockShape.of_layers(8, "float32", [(1, 4, 4)])
    good = torch.zeros(8, 1, 4)
    bad = good.clone()
    bad[3, 0, 1] = torch.nan
    with pytest.raises(KvtoolError, match="values are not finite"):
        encode_block(Raw(), shape, [(good, bad)], False)
    with pytest.raises(KvtoolError, match="too large"):
        encode_block(Int8(), shape, [(good + 1e9, good)], False)


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
