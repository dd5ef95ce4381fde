"""The host tier beside a GPU holds what the plain one holds, whatever its streams do first."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtool.engine.compute.arena import Arena
from kvtool.engine.compute.arrivals import Arrival
from kvtool.engine.compute.load import load_model
from kvtool.engine.compute.runner import Chunk, Runner
from kvtool.engine.storage import pinned
from kvtool.engine.storage.codec import encode_block, load_codec
from kvtool.engine.storage.coded import Encoded
from kvtool.engine.storage.host import PlainHost
from kvtool.engine.storage.identity import Identity
from kvtool.engine.storage.lanes import Lanes, Over
from kvtool.engine.storage.pinned import PinnedHost
from tests.engine.storage.simulated import Sim, SimEvent, SimLane

BLOCK = 16


@pytest.fixture(scope="module")
def model(tiny_model):
    return load_model(str(tiny_model), "auto")


@pytest.fixture
def tiers(model, monkeypatch):
    """A device arena of random numbers, and both kinds of host tier; copies go in rounds of three."""
    monkeypatch.setattr(pinned, "AT_ONCE", 3)
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


DEVICE, HOST = 5, 4


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 30))
def test_whatever_the_streams_do_first_every_layer_is_read_when_it_is_there(model, seed) -> None:
    """Blocks are numbers; a slot that is reused too early, on either side, shows another block's number."""
    draw = random.Random(seed)
    sim = Sim(draw)
    compute = SimLane(sim)
    lanes = Lanes(SimLane(sim), SimLane(sim), lambda: compute.last)
    shape = Identity.of_model(model, BLOCK).shape
    codec = load_codec({"codec": "raw"})
    device = Arena(model, DEVICE, BLOCK)
    host = PinnedHost(device, HOST, shape, codec, lanes)
    on_device: dict[int, int] = {}
    on_host: dict[int, int] = {}

    def block(number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [
            (torch.full_like(keys[0], number + layer / 4), torch.full_like(values[0], -number - layer / 4))
            for layer, (keys, values) in enumerate(zip(device.keys, device.values, strict=True))
        ]

    def seen(slot: int, layer: int, number: int) -> None:
        assert bool((device.keys[layer][slot] == number + layer / 4).all())
        assert bool((device.values[layer][slot] == -number - layer / 4).all())

    for number in range(40):
        kind = draw.randrange(7)
        if kind == 0:  # computed
            slot = draw.randrange(DEVICE)
            compute.last.synchronize()
            device.write_block(slot, block(number))
            on_device[slot] = number
        elif kind == 1 and on_device:
            sources = draw.sample(sorted(on_device), draw.randint(1, min(len(on_device), HOST)))
            slots = draw.sample(range(HOST), len(sources))
            host.keep(device, sources, slots, [False] * len(sources))
            on_host.update(zip(slots, (on_device[slot] for slot in sources), strict=True))
        elif kind == 2 and on_host:
            slots = draw.sample(sorted(on_host), draw.randint(1, min(len(on_host), DEVICE)))
            targets = draw.sample(range(DEVICE), len(slots))
            host.bring(device, slots, targets)
            on_device.update(zip(targets, (on_host[slot] for slot in slots), strict=True))
        elif kind == 3:
            slot = draw.randrange(HOST)
            data = encode_block(codec, shape, block(number), False)
            host.put(slot, Encoded(codec, data, False))
            on_host[slot] = number
        elif kind == 4 and on_host:
            slot = draw.choice(sorted(on_host))
            found = host.encoded(slot, False).decode(shape)
            assert [float(keys.flatten()[0]) for keys, _ in found] == [
                on_host[slot] + layer / 4 for layer in range(len(found))
            ]
        elif kind == 5 and on_device:  # a step that was launched and reads as late as it likes
            slot, layer = draw.choice(sorted(on_device)), draw.randrange(len(device.keys))
            waits = [each.layers[layer] for each in device.arrivals.of([slot])]
            compute.run(partial(seen, slot, layer, on_device[slot]), waits)
        for _ in range(draw.randrange(4)):
            sim.tick()
    while sim.tick():
        pass
    assert not any(sim.queues), "a deadlock"
    for slot, number in on_device.items():
        for layer in range(len(device.keys)):
            seen(slot, layer, number)


def test_a_layer_is_there_before_the_last_one(model) -> None:
    sim = Sim(random.Random(0))
    lanes = Lanes(SimLane(sim), SimLane(sim), lambda: Over())
    device = Arena(model, 4, BLOCK)
    shape = Identity.of_model(model, BLOCK).shape
    host = PinnedHost(device, 4, shape, load_codec({"codec": "raw"}), lanes)
    host._memory.normal_()
    host.bring(device, [0, 1, 2], [3, 0, 2])
    (arrival,) = device.arrivals.of([2])
    assert device.arrivals.of([1]) == []
    arrival.layers[0].wait()
    assert not arrival.layers[1].query(), "the second layer is waited for by itself"
    waited: list[int] = []
    tokens = np.arange(5, dtype=np.uint32)
    device.arrivals._coming[0] = Arrival(
        arrival.slots, [Noted(waited, layer, event) for layer, event in enumerate(arrival.layers)]
    )
    Runner(model, device).step([Chunk(tokens, 2 * BLOCK, [3, 0, 1], True)])
    assert waited == [0, 1] and sim.tick() is False
    assert device.arrivals.of([2]) == [], "all that came is forgotten"


class Noted(SimEvent):
    """Writes down who waits."""

    def __init__(self, waited: list[int], layer: int, event: SimEvent) -> None:
        self.waited, self.layer, self.event = waited, layer, event

    def query(self) -> bool:
        return self.event.query()

    def wait(self) -> None:
        self.waited.append(self.layer)
        self.event.wait()


def test_the_kernel_lifts_what_the_reference_does() -> None:
    pytest.importorskip("triton")
    from kvtool.engine.compute.kernels.lift import lift, lift_reference

    generator = torch.Generator().manual_seed(5)
    memory = torch.randn(6, 60_000, generator=generator)
    sources, targets = torch.tensor([4, 0, 5]), torch.tensor([1, 6, 0])
    found = []
    for each in (lift, lift_reference):
        keys, values = torch.zeros(7, 16, 3, 400), torch.zeros(7, 16, 3, 200)  # 19,200 and 9,600 of a row
        each(memory, sources, (1_000, 40_000), keys, values, targets)
        found.append((keys, values))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    assert torch.equal(found[0][0][6].flatten(), memory[0, 1_000:20_200]) and not found[0][0][2].any()
