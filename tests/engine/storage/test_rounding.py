"""Steered rounding against a slow reference, and what it is for: errors where queries do not look."""

import numpy as np
import torch

from kvtool.engine.storage import grid
from kvtool.engine.storage.codec import block_bytes, decode_block, encode_block, encode_blocks, load_codec
from kvtool.engine.storage.grid import step_sizes
from kvtool.engine.storage.layout import BlockShape
from kvtool.engine.storage.rotation import rotate
from kvtool.engine.storage.rounding import DAMPING, Guide, steered

LAYERS, HEADS, DIM = 2, 2, 24


def moments(seed: int = 0) -> torch.Tensor:
    """Queries that look in few directions: [layers, heads, dim, dim]."""
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(LAYERS, HEADS, 100, DIM, generator=generator)
    queries *= torch.logspace(0, -2, DIM)
    queries = queries @ torch.linalg.qr(torch.randn(DIM, DIM, generator=generator))[0]
    return queries.transpose(2, 3) @ queries / 100


def keys(tokens: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(LAYERS, 1, tokens, HEADS, DIM, generator=torch.Generator().manual_seed(seed)) + 2


def rotated(matrix: torch.Tensor) -> torch.Tensor:
    return rotate(rotate(matrix).transpose(-1, -2))


def slow(key: np.ndarray, step: np.ndarray, offset: np.ndarray, top: int, cost: np.ndarray) -> np.ndarray:
    """One key, channel by channel: what is rounded is the channel where the cost of all errors before it is
    least, given that those behind it are free to follow: -(cost of the rest)^-1 times their coupling."""
    dim = len(key)
    error = np.zeros(dim)
    codes = np.zeros(dim)
    for at in range(dim):
        # Errors of channels `at` on, if free, that make the best of those before.
        best = -np.linalg.solve(cost[at:, at:], cost[at:, :at] @ error[:at])
        wanted = key[at] + best[0]
        codes[at] = np.clip(np.round(wanted / step[at]) - offset[at], 0, top)
        error[at] = (codes[at] + offset[at]) * step[at] - key[at]
    return codes


def test_each_channel_makes_the_best_of_the_errors_before_it() -> None:
    numbers = keys(5)
    made = grid.encode(numbers, 2, 4, symmetric=False)
    matrix = moments()
    found = steered(numbers, made, 4, Guide(list(matrix)).feedback((0, 1)))
    assert found.dtype == torch.uint8 and found.shape == numbers.shape
    steps, offsets = step_sizes(made.steps).numpy(), made.offsets.numpy()
    same = 0
    for layer in range(LAYERS):
        for head in range(HEADS):
            cost = rotated(matrix[layer, head]).double().numpy()
            cost += DAMPING * np.trace(cost) / DIM * np.eye(DIM)
            for token in range(5):
                expected = slow(
                    numbers[layer, 0, token, head].double().numpy(),
                    steps[layer, 0, 0, head].astype(np.float64),
                    offsets[layer, 0, 0, head],
                    15,
                    cost,
                )
                same += np.array_equal(found[layer, 0, token, head].numpy(), expected)
    assert same >= LAYERS * HEADS * 5 - 1  # a tie may fall differently in float32


def test_queries_of_the_guide_see_less_of_the_error_and_others_are_not_lost() -> None:
    shape = BlockShape.of_layers(32, "float32", [(HEADS, DIM, DIM)] * LAYERS)
    both = keys(32)[:, 0]
    block = [(both[layer], both[layer]) for layer in range(LAYERS)]
    matrix = moments()
    for name in ("int4", "int5", "int6", "k3v2"):
        codec = load_codec({"codec": name})
        lost = []
        for guide in (None, Guide(list(matrix))):
            data = encode_block(codec, shape, block, True, guide)
            assert len(data) == block_bytes(codec, shape, True)
            found = decode_block(codec, shape, bytearray(data), True)
            errors = torch.stack([pair[0] for pair in found]) - both
            assert torch.equal(found[0][0][0], both[0, 0])  # the sink
            lost.append(float(torch.einsum("lthi,lhij,lthj->", errors, matrix, errors)))
            assert torch.equal(found[0][1], decode_block(codec, shape, bytearray(data), True)[0][1])
        assert lost[1] < 0.5 * lost[0]
    for name in ("raw", "half", "int8", "k8v4"):
        codec = load_codec({"codec": name})
        assert encode_block(codec, shape, block, True, Guide(list(matrix))) == encode_block(
            codec, shape, block, True
        )


def test_queries_that_look_everywhere_change_nothing() -> None:
    numbers = keys(7)
    made = grid.encode(numbers, 2, 4, symmetric=False)
    plain = Guide([torch.eye(DIM).expand(HEADS, DIM, DIM)] * LAYERS).feedback((0, 1))
    assert torch.equal(steered(numbers, made, 4, plain), made.codes)


def test_a_channel_of_zeros_and_a_guide_of_zeros() -> None:
    numbers = keys(6)
    numbers[..., 3] = 0
    made = grid.encode(numbers, 2, 4, symmetric=False)
    codes = steered(numbers, made, 4, Guide(list(moments())).feedback((0, 1)))
    assert (grid.decode(grid.Grid(codes, made.steps, made.offsets))[..., 3] == 0).all()
    nothing = Guide([torch.zeros(HEADS, DIM, DIM)] * LAYERS).feedback((0, 1))
    assert torch.equal(steered(numbers, made, 4, nothing), made.codes)


def test_blocks_that_are_coded_together_are_as_each_alone() -> None:
    shape = BlockShape.of_layers(8, "float32", [(HEADS, DIM, DIM)] * LAYERS)
    guide = Guide(list(moments()))
    some = [keys(8, seed)[:, 0] for seed in (1, 2, 3)]
    for name in ("int4", "k3v2"):
        codec = load_codec({"codec": name})
        together = [(torch.stack([one[layer] for one in some]),) * 2 for layer in range(LAYERS)]
        made, _ = encode_blocks(codec, shape, together, False, guide)
        for row, one in zip(made, some, strict=True):
            alone = encode_block(
                codec, shape, [(one[layer], one[layer]) for layer in range(LAYERS)], False, guide
            )
            assert row.numpy().tobytes() == alone
