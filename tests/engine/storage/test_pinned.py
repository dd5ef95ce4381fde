"""The host tier beside a GPU holds what the plain one holds (without a GPU: its order, not its streams)."""

import pytest
import torch

from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.load import load_model
from kvtool.engine.storage import pinned
from kvtool.engine.storage.codec import load_codec
from kvtool.engine.storage.host import PlainHost
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.pinned import PinnedHost

BLOCK = 16


@pytest.fixture
def tiers(tiny_model, monkeypatch):
    """A device arena of random numbers, and both kinds of host tier; copies go in rounds of three."""
    monkeypatch.setattr(pinned, "AT_ONCE", 3)
    model = load_model(str(tiny_model), "auto")
    shape = Identity.of_model(model, BLOCK).shape
    device = Arena(model, 12, BLOCK)
    for tensor in (*device.keys, *device.values):
        tensor.normal_()
    codec = load_codec({"codec": "raw"})
    plain = PlainHost(Arena(model, 8, BLOCK, device="cpu"), shape, codec)
    return device, plain, PinnedHost(device, 8, shape, codec)


def test_blocks_come_back_into_other_slots(tiers) -> None:
    device, plain, host = tiers
    sources, slots = [3, 0, 9, 11, 5], [7, 1, 0, 2, 4]
    for each in (plain, host):
        each.keep(device, sources, slots, [False] * 5)
    before = device.read_blocks(sources)
    for number, slot in enumerate(slots):
        for each in (host.encoded(slot, False), plain.encoded(slot, False)):
            found = each.decode(host._shape)
            for (keys, values), (all_keys, all_values) in zip(found, before, strict=True):
                assert torch.equal(keys, all_keys[number].cpu())
                assert torch.equal(values, all_values[number].cpu())
    targets = [10, 8, 7, 6, 4]
    host.bring(device, slots, targets)
    for (keys, values), (old_keys, old_values) in zip(device.read_blocks(targets), before, strict=True):
        assert torch.equal(keys, old_keys) and torch.equal(values, old_values)


def test_a_block_from_disk_is_brought_up_whole(tiers) -> None:
    device, plain, host = tiers
    plain.keep(device, [2], [0], [True])
    host.put(5, plain.encoded(0, True))
    host.bring(device, [5], [9])
    for (keys, values), (old_keys, old_values) in zip(
        device.read_blocks([9]), device.read_blocks([2]), strict=True
    ):
        assert torch.equal(keys, old_keys) and torch.equal(values, old_values)
