"""Device blocks that stay quantized: the model reads them as if they had been decoded, whoever reads."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.quantized_arena import QuantizedArena
from kvtool.engine.compute.reads import Span
from kvtool.engine.compute.runner import Chunk, Runner
from kvtool.engine.storage.codec import block_bytes, decode_blocks, encode_blocks, load_codec
from kvtool.engine.storage.layout import BlockShape

SIZE = 16
CODECS = ["int8", "k8v4", "int4"]


def quantized(model: Model, slots: int, codec: str, raw_slots: int, kernels: bool = False) -> QuantizedArena:
    made: Any = load_codec({"codec": codec})
    arena = QuantizedArena(model, slots, SIZE, made, raw_slots, kernels)
    for tensor in (*arena.keys, *arena.values):
        tensor.fill_(torch.nan)
    return arena


def through(model: Model, arena: Arena, codec: str, slots: list[int]) -> None:
    """Round blocks in place as the codec does."""
    shape = BlockShape.of_layers(SIZE, model.dtype_name, model.config.layer_shapes)
    made = load_codec({"codec": codec})
    data, _ = encode_blocks(made, shape, arena.read_blocks(slots), False)
    arena.write_blocks(slots, decode_blocks(made, shape, data, False))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("slots", [list(range(9)), [7, 2, 5, 0, 8, 3, 1, 6, 4]])
def test_the_model_reads_quantized_blocks_as_if_they_had_been_decoded(
    tiny: Callable[[str], Any], make_prompt: Any, codec: str, slots: list[int]
) -> None:
    model = tiny("grouped-query llama").model
    tokens = make_prompt(9 * SIZE - 3)
    logits = []
    for kind in ("quantized", "decoded", "exact"):
        arena = quantized(model, 9, codec, 8) if kind == "quantized" else Arena(model, 9, SIZE)
        runner = Runner(model, arena)
        runner.step([Chunk(tokens[: 6 * SIZE], 0, slots[:6])])
        if kind == "decoded":
            through(model, arena, codec, slots[1:6])
        found = [runner.step([Chunk(tokens[6 * SIZE : 7 * SIZE], 6 * SIZE, slots, want_logits=5)])]
        if kind == "decoded":
            through(model, arena, codec, slots[6:7])
        found.append(runner.step([Chunk(tokens[7 * SIZE : -1], 7 * SIZE, slots, want_logits=2)]))
        if kind == "decoded":
            through(model, arena, codec, slots[7:8])
        found.append(runner.step([Chunk(tokens[-1:], len(tokens) - 1, slots, want_logits=1)]))
        if isinstance(arena, QuantizedArena):
            assert [arena.is_raw(slot) for slot in slots] == [True, *[False] * 7, True]
        logits.append(torch.cat(found))
    torch.testing.assert_close(logits[0], logits[1], atol=2e-5, rtol=0)
    assert (logits[0] - logits[2]).abs().max() > 1e-3, "the codes were read, not what they came from"


@pytest.mark.parametrize(("name", "codec"), [("grouped-query llama", "k8v4"), ("multi-query llama", "int4")])
def test_the_kernels_read_what_the_reference_reads(
    tiny: Callable[[str], Any], make_prompt: Any, name: str, codec: str
) -> None:
    """A prefix in two chunks, a batch of two that share it, then a batch of decodes."""
    model = tiny(name).model
    trunk = make_prompt(40)
    own = [make_prompt(20, seed=1), make_prompt(3, seed=2)]
    logits = []
    for kernels in (False, True):
        arena = quantized(model, 12, codec, 9, kernels)
        runner = Runner(model, arena, kernels)
        runner.step([Chunk(trunk[:32], 0, [11, 3])])
        tables = [[11, 3, 7, 5], [11, 3, 0]]
        prompts = [np.concatenate([trunk, each]) for each in own]
        runner.step([Chunk(p[32:-1], 32, slots) for p, slots in zip(prompts, tables, strict=True)])
        last = [Chunk(p[-1:], len(p) - 1, slots, True) for p, slots in zip(prompts, tables, strict=True)]
        logits.append(runner.step(last))
        assert not arena.is_raw(3) and not arena.is_raw(7) and arena.is_raw(11) and arena.is_raw(5)
    torch.testing.assert_close(logits[1], logits[0], atol=5e-3, rtol=0)
    assert (logits[1] - logits[0]).abs().mean() < 2e-4


def test_raw_slots_go_to_those_who_use_them(tiny: Callable[[str], Any]) -> None:
    model = tiny("grouped-query llama").model
    arena = quantized(model, 20, "int8", 4)
    for first in (0, 1, 2):
        arena.begin([Span(0, SIZE, 0, [first])])
    assert [arena.is_raw(slot) for slot in range(3)] == [True] * 3 and arena.crowded_out == 0
    arena.begin([Span(0, 2, SIZE, [0, 9])])  # the first block of a prompt that goes on is in use
    arena.begin([Span(0, 4, 0, [3])])  # no room: what was used longest ago is squeezed
    assert [arena.is_raw(slot) for slot in (0, 1, 2, 9, 3)] == [True, False, True, True, True]
    assert arena.crowded_out == 1, "it had been full for long and was squeezed all the same"
    with pytest.raises(AssertionError, match="too few raw slots"):
        arena.begin([Span(0, 5 * SIZE, 0, [10, 11, 12, 13, 14])])


def test_a_block_that_was_squeezed_half_full_goes_on(tiny: Callable[[str], Any]) -> None:
    model = tiny("grouped-query llama").model
    arena = quantized(model, 20, "int8", 2)
    (span,) = arena.begin([Span(0, 5, 0, [7])])
    for tensor in (*arena.keys, *arena.values):
        tensor[span.slots[0], :] = torch.arange(SIZE)[:, None, None].to(tensor.dtype)
    for other in (1, 2):
        arena.begin([Span(0, SIZE, 0, [other])])
    assert not arena.is_raw(7)
    (span,) = arena.begin([Span(0, 1, 5, [7])])
    for keys, values in zip(arena.keys, arena.values, strict=True):
        for tensor in (keys, values):
            wanted = torch.arange(SIZE)[:, None, None].expand(tensor.shape[1:]).float()
            torch.testing.assert_close(tensor[span.slots[0]], wanted, atol=0.07, rtol=0)


@pytest.mark.parametrize("seed", range(2))
def test_blocks_stay_themselves_whatever_happens(tiny: Callable[[str], Any], seed: int) -> None:
    """Steps, loads of numbers and of codes, evictions: a dict of what each slot should hold is the truth."""
    model = tiny("grouped-query llama").model
    arena = quantized(model, 16, "int8", 5)
    draw = random.Random(seed)
    truth: dict[int, float] = {}

    def blocks(numbers: list[float]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [
            tuple(
                torch.tensor(numbers)[:, None, None, None].expand(len(numbers), *tensor.shape[1:])
                for tensor in pair
            )
            for pair in zip(arena.keys, arena.values, strict=True)
        ]

    for turn in range(60):
        slots = draw.sample(range(16), draw.randint(1, 3))
        numbers = [1.07 ** draw.randint(1, 99) for _ in slots]
        match draw.choice(["step", "load", "codes", "squeeze"]):
            case "step":
                (span,) = arena.begin([Span(0, SIZE * len(slots), 0, slots)])
                for number, entry in zip(numbers, span.slots, strict=True):
                    for tensor in (*arena.keys, *arena.values):
                        tensor[entry] = number
            case "load":
                arena.write_blocks(slots, blocks(numbers))
            case "codes":
                other = quantized(model, 16, "int8", 5)
                other.write_blocks(slots, blocks(numbers))
                other.squeeze(slots)
                arena.put_codes(slots, other.codes(slots))
                assert not any(map(arena.is_raw, slots))
            case "squeeze":
                arena.squeeze(slots)
                numbers = [truth.get(slot, 0.0) for slot in slots]
        truth.update(zip(slots, numbers, strict=True))
        known = [slot for slot in truth if truth[slot]]
        if known:
            draw.shuffle(known)
            for pair in arena.read_blocks(known):
                for tensor in pair:
                    means = tensor.flatten(1).mean(1)
                    wanted = torch.tensor([truth[slot] for slot in known])
                    torch.testing.assert_close(means, wanted, rtol=0.03, atol=0, msg=f"turn {turn}")


@pytest.mark.parametrize("codec", CODECS)
def test_a_slot_takes_what_a_shard_takes(tiny: Callable[[str], Any], codec: str) -> None:
    model = tiny("grouped-query llama").model
    arena = quantized(model, 10, codec, 2)
    shape = BlockShape.of_layers(SIZE, model.dtype_name, model.config.layer_shapes)
    size = sum(tensor.nbytes for blocks in arena.quantized for tensor in blocks.tensors())
    assert size == 10 * block_bytes(load_codec({"codec": codec}), shape, False)
