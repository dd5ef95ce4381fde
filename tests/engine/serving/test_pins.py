"""Soft pins hold for their time, within their share, and give way to live traffic."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kvtool.cache.tiers import Tier

Make = Callable[..., Any]


def computed(engine: Any, first: int, blocks: int) -> list[int]:
    """Nodes of a prompt of whole blocks that has just been served."""
    prompt = list(range(first, first + 4 * blocks))
    asked = engine.ask(prompt, 1)
    engine.run()
    nodes: list[int] = engine.index.chain(np.array(prompt, np.uint32), asked.request.root)
    return nodes


def test_pinned_blocks_outlive_others_until_their_time_is_over(fake_engine: Make) -> None:
    engine = fake_engine(device=12)
    pins = engine.scheduler.pins
    kept = computed(engine, 100, 4)
    assert pins.hold(kept, seconds=1e6, now=engine.clock()) == 4 and len(pins) == 1
    for first in range(200, 800, 100):
        computed(engine, first, 5)
    assert engine.pool.locate(kept) == [Tier.DEVICE] * 4
    pins.expire(engine.now + 1e7)
    assert len(pins) == 0
    for first in range(1200, 1800, 100):
        computed(engine, first, 5)
    assert engine.pool.locate(kept) == []
    engine.pool.check()


def test_pins_take_at_most_half_of_the_pool(fake_engine: Make) -> None:
    engine = fake_engine(device=12)
    nodes = computed(engine, 100, 9)
    assert engine.scheduler.pins.hold(nodes, 100.0, engine.clock()) == 6
    assert engine.scheduler.pins.hold(nodes, 100.0, engine.clock()) == 0
    assert engine.scheduler.pins.hold([], 100.0, engine.clock()) == 0


def test_a_pin_gives_way_before_a_request_waits(fake_engine: Make, answer: Callable[..., list[int]]) -> None:
    engine = fake_engine(device=12)
    engine.scheduler.pins.hold(computed(engine, 100, 6), 1e6, engine.clock())
    prompt = list(range(300, 340))
    asked = engine.ask(prompt, 8)  # ten blocks and two more: not beside six that are pinned
    engine.run()
    assert asked.request.generated == answer(prompt, 8)
    assert len(engine.scheduler.pins) == 0 and engine.pool.device.available() == 12
    engine.pool.check()
