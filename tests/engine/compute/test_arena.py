"""Blocks in and out of the arena."""

from dataclasses import replace

import pytest
import torch

from kvtool.engine.compute.arena import Arena, block_bytes
from kvtool.engine.compute.reads import Keys
from kvtool.engine.storage.codec import encode_block, load_codec
from kvtool.engine.storage.layout import BlockShape


def filled(model, slots=12, block_size=4):
    """An arena in which every element says where it is."""
    arena = Arena(model, slots, block_size)
    for number, tensor in enumerate((*arena.keys, *arena.values)):
        tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) + number / 64)
    return arena


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ([2, 3, 4, 5], [0, 1, 2, 3]),
        ([2, 3, 4, 5, 9, 6, 7, 8], [1, 2, 3, 4, 0, 5, 6, 7]),
        ([2, 3, 9], [1, 2, 0]),
        ([4, 3, 5], [2, 3, 4]),
        ([], []),
    ],
)
def test_blocks_are_copied_one_by_one_or_in_stretches_and_nothing_beside_them(tiny, theirs, ours):
    model = tiny("grouped-query llama").model
    source, target = filled(model), Arena(model, 9, 4)
    for tensor in (*target.keys, *target.values):
        tensor.fill_(-1)
    target.copy_from(source, theirs, ours)
    for here, there in zip((*target.keys, *target.values), (*source.keys, *source.values), strict=True):
        expected = torch.full_like(here, -1)
        for slot, old in zip(ours, theirs, strict=True):
            expected[slot] = there[old]
        assert torch.equal(here, expected)


@pytest.mark.parametrize("name", ["grouped-query llama", "latent deepseek"])
def test_blocks_move_between_arenas_unchanged(tiny, name):
    model = tiny(name).model
    source, target = filled(model), Arena(model, 5, 4)
    target.copy_from(source, [7, 0, 11], [4, 1, 2])
    for ours, theirs in zip((*target.keys, *target.values), (*source.keys, *source.values), strict=True):
        assert torch.equal(ours[[4, 1, 2]], theirs[[7, 0, 11]])
    block = source.read_block(7)
    assert [key.shape[2] for key, _ in block] == [layer.key_dim for layer in model.config.layers]
    target.write_block(0, block)
    assert all(torch.equal(target.keys[i][0], source.keys[i][7]) for i in range(3))
    assert all(torch.equal(target.values[i][0], source.values[i][7]) for i in range(3))


@pytest.mark.parametrize("name", ["grouped-query llama", "latent deepseek"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_are_those_of_the_raw_codec_and_come_back(tiny, name, dtype):
    model = replace(tiny(name).model, dtype=dtype)
    source, target = filled(model), Arena(model, 5, 4)
    shape = BlockShape.of_layers(4, model.dtype_name, model.config.layer_shapes)
    data = source.bytes_of(7)
    assert data.tobytes() == encode_block(load_codec({"codec": "raw"}), shape, source.read_block(7), False)
    target.put_bytes(2, data.data)
    for ours, theirs in zip((*target.keys, *target.values), (*source.keys, *source.values), strict=True):
        assert torch.equal(ours[2], theirs[7])


def test_reading_gives_copies(tiny):
    arena = filled(tiny("grouped-query llama").model)
    before = arena.keys[0][3].clone()
    arena.read_block(3)[0][0].fill_(-1)
    arena.read_blocks([3])[0][0].fill_(-1)
    assert torch.equal(arena.keys[0][3], before)


def test_block_bytes_counts_what_is_allocated(tiny):
    for name in ("grouped-query llama", "latent deepseek"):
        model = tiny(name).model
        arena = Arena(model, 6, 8)
        allocated = sum(tensor.nbytes for tensor in (*arena.keys, *arena.values))
        assert arena.block_bytes * 6 == allocated == block_bytes(model, 8) * 6


def test_tokens_in_place_are_views_and_gathered_ones_are_in_order(tiny):
    arena = filled(tiny("grouped-query llama").model)
    keys, values = arena.read_tokens(1, Keys(6, 21))
    assert keys.data_ptr() == arena.keys[1].flatten(0, 1)[6].data_ptr()
    assert torch.equal(values, arena.values[1].flatten(0, 1)[6:21].transpose(0, 1))
    keys, values = arena.read_tokens(1, Keys(1, 7, torch.tensor([9, 2])))
    expected = torch.cat([arena.keys[1][9], arena.keys[1][2]])[1:7]
    assert torch.equal(keys, expected.transpose(0, 1)) and values.shape == (2, 6, 8)
