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


def test_what_a_session_asks_to_be_kept_outlives_others_for_its_time(fake_engine: Make) -> None:
    engine = fake_engine(device=24)
    prompt, other = list(range(100, 117)), list(range(200, 217))
    engine.ask(prompt, 4, session="s").request.keep = 500.0
    engine.ask(other, 4, session="t")
    engine.run()
    for first in range(1000, 2000, 100):
        computed(engine, first, 5)
    again, lost = engine.ask(prompt, 1, session="s"), engine.ask(other, 1, session="t")
    engine.run()
    assert again.request.cached == 16 and lost.request.cached == 0
    assert len(engine.scheduler.kept) == 1 and len(engine.scheduler.pins) == 0
    engine.now += 501
    for first in range(2000, 3000, 100):
        computed(engine, first, 5)
    late = engine.ask(prompt, 1)
    engine.run()
    assert late.request.cached == 0 and len(engine.scheduler.kept) == 0
    engine.pool.check()


def test_a_sessions_blocks_are_kept_once_within_a_quarter_and_until_it_ends(fake_engine: Make) -> None:
    engine = fake_engine(device=24)
    for length, held in ((9, 2), (13, 3), (60, 6)):
        engine.ask(list(range(100, 100 + length)), 1, session="s").request.keep = 1e6
        engine.run()
        assert len(engine.scheduler.kept) == 1
        assert engine.pool.device.capacity - engine.pool.device.available() == held
    engine.ask([7] * 9, 1, session="other").request.keep = 1e6
    engine.run()
    assert len(engine.scheduler.kept) == 1, "no room beside the first"
    engine.ask([7] * 9, 1, session="s").request.keep = 0.0
    engine.run()
    assert len(engine.scheduler.kept) == 0 and engine.pool.device.available() == 24
    engine.pool.check()


def test_what_sessions_keep_gives_way_before_what_the_admin_pinned(fake_engine: Make) -> None:
    engine = fake_engine(device=24)
    engine.scheduler.pins.hold(computed(engine, 100, 6), 1e6, engine.clock())
    engine.ask(list(range(300, 317)), 1, session="s").request.keep = 1e6
    engine.run()
    assert len(engine.scheduler.kept) == 1
    engine.ask(list(range(400, 468)), 4)
    engine.run()
    assert len(engine.scheduler.kept) == 0 and len(engine.scheduler.pins) == 1
    engine.pool.check()
