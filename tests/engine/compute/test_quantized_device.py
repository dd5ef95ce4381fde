"""Device blocks that stay quantized: an arena that holds codes serves the model, nothing above it changes.

On a GPU the kernels read such blocks themselves; this is the path on a CPU that says what they must give.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.load import load_model
from kvtool.engine.compute.model import Model
from kvtool.engine.compute.reads import Keys
from kvtool.engine.compute.runner import Chunk, Runner
from kvtool.engine.storage.codec import decode_block, encode_block, load_codec
from kvtool.engine.storage.layout import BlockShape

SIZE = 16
SEALED = 6


class CodedArena(Arena):
    """Sealed blocks exist as a codec's bytes alone; the raw tensors hold only what is being filled."""

    def __init__(self, model: Model, slots: int, codec: str) -> None:
        super().__init__(model, slots, SIZE)
        self.codec = load_codec({"codec": codec})
        self.shape = BlockShape.of_layers(SIZE, model.dtype_name, model.config.layer_shapes)
        self.coded: dict[int, tuple[bytes, bool]] = {}

    def seal(self, slot: int, first: bool) -> None:
        self.coded[slot] = (encode_block(self.codec, self.shape, self.read_block(slot), first), first)
        for tensor in (*self.keys, *self.values):
            tensor[slot] = torch.nan  # whoever reads it raw will know

    def decoded(self, slot: int) -> list[tuple[Tensor, Tensor]]:
        data, first = self.coded[slot]
        return list(decode_block(self.codec, self.shape, bytearray(data), first))

    def read_tokens(self, layer: int, keys: Keys) -> tuple[Tensor, Tensor]:
        start = 0 if keys.gather is not None else keys.first // SIZE
        slots = keys.gather.tolist() if keys.gather is not None else range(start, -(-keys.last // SIZE))
        blocks = [
            self.decoded(slot)[layer]
            if slot in self.coded
            else (self.keys[layer][slot], self.values[layer][slot])
            for slot in slots
        ]
        found = []
        for side in (0, 1):
            tokens = torch.cat([block[side] for block in blocks])
            found.append(tokens[keys.first - start * SIZE : keys.last - start * SIZE].transpose(0, 1))
        return found[0], found[1]


@pytest.mark.parametrize("codec", ["raw", "int8", "int4"])
@pytest.mark.parametrize("slots", [list(range(9)), [7, 2, 5, 0, 8, 3, 1, 6, 4]])
def test_the_model_reads_coded_blocks_as_if_they_had_been_decoded(
    tiny_model: Path, codec: str, slots: list[int]
) -> None:
    model = load_model(str(tiny_model), "cpu", "auto")
    tokens = np.random.default_rng(5).integers(0, 256, 9 * SIZE - 3).astype(np.uint32)
    cut = SEALED * SIZE
    plain, coded = Arena(model, 9, SIZE), CodedArena(model, 9, codec)
    exact = Arena(model, 9, SIZE)
    for arena in (plain, coded, exact):
        Runner(model, arena).step([Chunk(tokens[:cut], 0, slots[:SEALED])])
    for place, slot in enumerate(slots[:SEALED]):
        coded.seal(slot, place == 0)
        plain.write_block(slot, coded.decoded(slot))
    logits = []
    for arena in (plain, coded, exact):
        runner = Runner(model, arena)
        prefill = runner.step([Chunk(tokens[cut:-1], cut, slots, want_logits=3)])
        decode = runner.step([Chunk(tokens[-1:], len(tokens) - 1, slots, want_logits=1)])
        logits.append(torch.cat([prefill, decode]))
    torch.testing.assert_close(logits[1], logits[0], atol=1e-5, rtol=0)
    assert torch.isfinite(logits[1]).all()
    far = (logits[1] - logits[2]).abs().max()
    assert far < 1e-5 if codec == "raw" else far > 1e-3, "the codes were read, not what they came from"
    size = sum(len(data) for data, _ in coded.coded.values()) / (SEALED * coded.block_bytes)
    assert size < {"raw": 1.01, "int8": 0.45, "int4": 0.3}[codec]
