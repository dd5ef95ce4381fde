"""What a decode graph is fed: padded rows, buckets of lengths, nothing left over from the batch before."""

import torch

from kvtool.engine.compute.graphs import DecodeBatch, DecodeGraphs, DecodeTiles

BLOCK = 16


class Recorder:
    """A forward that keeps what it was given; its logits name the token and the position."""

    def __init__(self) -> None:
        self.calls: list[tuple[torch.Tensor, ...]] = []
        self.tiles: list[DecodeTiles] = []

    def __call__(
        self, tokens: torch.Tensor, positions: torch.Tensor, writes: torch.Tensor, plan: DecodeTiles
    ) -> torch.Tensor:
        self.calls.append(tuple(each.clone() for each in (tokens, positions, writes)))
        self.tiles.append(plan)
        return torch.stack([tokens.float(), positions.float()], 1)


def graphs(forward: Recorder, at_once: int = 2) -> DecodeGraphs:
    return DecodeGraphs(forward, torch.device("cpu"), BLOCK, 2, 5000, at_once)


def batch(
    positions: list[int],
    tables: list[list[int]],
    follows: list[int] | None = None,
    previous: torch.Tensor | None = None,
) -> DecodeBatch:
    rows = len(positions)
    at = torch.tensor(positions)
    writes = torch.tensor(
        [
            table[place // BLOCK] * BLOCK + place % BLOCK
            for table, place in zip(tables, positions, strict=True)
        ]
    )
    inputs = torch.stack([torch.arange(rows) + 7, at, writes, torch.tensor(follows or [-1] * rows)])
    return DecodeBatch(inputs, tables, previous)


def test_rows_that_fill_up_a_batch_repeat_its_last_row() -> None:
    forward = Recorder()
    logits = graphs(forward).run(batch([20, 3, 40], [[5, 6], [9], [1, 2, 3, 77]]))
    assert logits.tolist() == [[7, 20], [8, 3], [9, 40]]
    tokens, positions, writes = forward.calls[0]
    assert tokens.tolist() == [7, 8, 9, 9]
    assert positions.tolist() == [20, 3, 40, 40]
    assert writes.tolist() == [6 * BLOCK + 4, 9 * BLOCK + 3, 3 * BLOCK + 8, 3 * BLOCK + 8]
    (tiles,) = forward.tiles[0].tiles(3, 2, 128)
    assert tiles.table.tolist() == [[0, 0, 1, 20], [1, 1, 1, 3], [2, 2, 1, 40], [3, 3, 1, 40]]
    # A table's blocks beyond the sequence's end are no business of the kernels.
    assert tiles.blocks[:, :4].tolist() == [[5, 6, 0, 0], [9, 0, 0, 0], [1, 2, 3, 0], [1, 2, 3, 0]]


def test_a_shorter_batch_finds_nothing_of_the_one_before() -> None:
    forward = Recorder()
    each = graphs(forward)
    each.run(batch([60, 61], [[1, 2, 3, 4], [5, 6, 7, 8]]))
    each.run(batch([0, 17], [[9], [10, 11]]))
    first, second = (plan.tiles(1, 1, 128)[0] for plan in forward.tiles)
    assert first.blocks is second.blocks, "the same graph"
    assert second.blocks[:, :4].tolist() == [[9, 0, 0, 0], [10, 11, 0, 0]]


def test_tokens_of_the_step_before_are_taken_where_they_are() -> None:
    forward = Recorder()
    previous = torch.tensor([90, 91, 92])
    graphs(forward).run(batch([4, 5, 6], [[1], [2], [3]], [2, -1, 0], previous))
    assert forward.calls[0][0].tolist() == [92, 8, 90, 90], "the row that fills up follows as the last one"


def test_a_graph_for_each_size_and_bucket_of_lengths() -> None:
    forward = Recorder()
    each = graphs(forward, at_once=264)
    shapes = []
    for length in (1, 1024, 1025, 5000):
        for rows in (1, 9):
            table = list(range(-(-5008 // BLOCK)))
            each.run(batch([length - 1] * rows, [table] * rows))
            (tiles,) = forward.tiles[-1].tiles(1, 2, 128)
            shapes.append((*tiles.blocks.shape, tiles.splits))
    assert shapes == [
        (1, 64, 4),
        (16, 64, 4),
        (1, 64, 4),
        (16, 64, 4),
        (1, 128, 8),
        (16, 128, 8),
        (1, 313, 19),  # the longest sequence ends the last bucket
        (16, 313, 8),
    ]
