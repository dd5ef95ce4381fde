"""Prefetch: blocks of a slow disk are there when they are asked for, guesses are held, counted and let go."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from kvtool.analysis.build import build_workload
from kvtool.blocks import BlockHash, namespace
from kvtool.cache.tiers import Tier
from kvtool.engine.serving.chunking import Limits
from kvtool.engine.storage.outlook import Expected, Outlook, learn_outlook
from kvtool.requests import Request, Source
from kvtool.tokens import load_encoder

Make = Callable[..., Any]
Answer = Callable[[Sequence[int], int], list[int]]
A, B = list(range(100, 117)), list(range(300, 317))


def cooled(fake_engine: Make, **options: Any) -> Any:
    """An engine whose disk, and nothing above it, has the blocks of A."""
    engine = fake_engine(**{"device": 6, "host": 8, "disk": 100, "limits": Limits(16, 1), **options})
    engine.ask(A, 1)
    engine.run()
    upper = [pool.capacity for tier, pool in engine.pool.lower.items() if tier is Tier.HOST]
    for number in range(sum(upper) // 4 + 3):
        engine.ask([500 + number] * 17, 1)
        engine.run()
    assert engine.pool.locate(blocks(engine, A)) == [Tier.DISK] * 4
    engine.memory.polls = 3
    engine.scheduler.rates.patience = lambda blocks: 1e9
    return engine


def blocks(engine: Any, prompt: Sequence[int]) -> list[int]:
    found: list[int] = engine.index.chain(np.array(prompt, np.uint32), namespace("fake"))
    return found


@pytest.mark.parametrize("able", [True, False])
def test_a_request_that_waits_for_its_turn_has_its_blocks_read_meanwhile(
    fake_engine: Make, answer: Answer, able: bool
) -> None:
    engine = cooled(fake_engine, host=20)
    if not able:
        engine.scheduler.prefetch._most = 0
    talker, asked = engine.ask([1, 2, 3], 9), engine.ask(A, 2)
    engine.run()
    assert len(talker.request.generated) > 5
    assert asked.request.generated == answer(A, 2) and asked.request.cached == 16
    counts = engine.scheduler.counts
    assert counts["waits"] == (0 if able else 1)
    assert counts["prefetched_arrival"] == counts["prefetch_used_arrival"] == (4 if able else 0)
    assert counts["demand_blocks"] == (0 if able else 4)
    engine.pool.check()


def test_what_was_asked_for_is_in_the_host_tier_for_its_time(fake_engine: Make, answer: Answer) -> None:
    engine = cooled(fake_engine, host=20)
    assert engine.scheduler.fetch(blocks(engine, A)) == 4
    engine.run()
    assert engine.pool.locate(blocks(engine, A)) == [Tier.HOST] * 4
    asked = engine.ask(A, 1)
    engine.run()
    assert asked.request.cached == 16 and engine.scheduler.counts["waits"] == 0
    assert engine.scheduler.counts["hit_tokens_host"] == 16
    engine.now += 100
    engine.scheduler.step()
    assert not len(engine.scheduler.prefetch), "its time is over"
    engine.pool.check()


def test_without_a_host_tier_what_is_asked_for_comes_to_the_device(fake_engine: Make) -> None:
    engine = cooled(fake_engine, host=0)
    assert engine.scheduler.fetch(blocks(engine, A)) == 4
    engine.run()
    assert engine.pool.locate(blocks(engine, A)) == [Tier.DEVICE] * 4


def test_a_request_that_leaves_while_its_blocks_are_read_leaves_nothing_behind(fake_engine: Make) -> None:
    engine = cooled(fake_engine)
    engine.ask([1, 2, 3], 9)
    asked = engine.ask(A, 2)
    engine.scheduler.step()
    assert engine.scheduler.prefetch.coming()
    engine.scheduler.cancel(asked.request)
    assert not engine.scheduler.prefetch.coming() and not len(engine.scheduler.prefetch)
    engine.run()
    engine.pool.check()
    host, disk = engine.pool.lower[Tier.HOST], engine.pool.lower[Tier.DISK]
    assert host.available() == host.capacity and disk.available() == disk.capacity


def test_a_bad_copy_is_counted_and_a_late_one_is_read_again(fake_engine: Make, answer: Answer) -> None:
    for fault in ("bad", "late"):
        engine = cooled(fake_engine, host=20)
        third = blocks(engine, A)[2]
        if fault == "bad":
            engine.memory.bad.add((Tier.DISK, engine.pool.lower[Tier.DISK].slot_of(third)))
        else:
            engine.memory.polls = 1 << 30
            engine.scheduler.rates.patience = lambda blocks: 5.0
        engine.scheduler.fetch(blocks(engine, A))
        engine.run()
        engine.pool.check()
        assert engine.scheduler.counts["bad_blocks"] == (fault == "bad")
        assert not engine.scheduler.prefetch.coming()
        engine.memory.polls = 0
        asked = engine.ask(A, 2)
        engine.run()
        assert asked.request.generated == answer(A, 2)
        assert asked.request.cached == (8 if fault == "bad" else 16)


Visit = tuple[float, str, list[int]]


def visits(rounds: int, sessions: str = "abcdef") -> list[Visit]:
    """Agents that come back every 60 s with a prompt grown by eight tokens."""
    found: list[Visit] = []
    for turn in range(rounds):
        for number, name in enumerate(sessions):
            grown = [ord(name)] * 13 + list(range(8 * turn + 1))
            found.append((60.0 * turn + 3.0 * number, name, grown))
    return found


class Roots:
    """An identity as far as an outlook needs it."""

    def root(self, tenant: str = "") -> BlockHash:
        return namespace("fake")


def learned(log: list[Visit]) -> Outlook:
    requests = [
        Request(
            str(row), Source("log", row), int(at * 1e6), session=session, token_ids=np.array(ids, np.uint32)
        )
        for row, (at, session, ids) in enumerate(log)
    ]
    outlook = learn_outlook(build_workload(requests, load_encoder("bytes"), 4), Roots())  # type: ignore[arg-type]
    assert outlook is not None
    return outlook


def drive(engine: Any, log: list[Visit]) -> None:
    """Send the log at its times over a disk that takes three looks; a step a second."""
    engine.tick = 0.0
    engine.memory.polls = 3
    engine.scheduler.rates.patience = lambda blocks: 1e9
    for at, session, prompt in log:
        while engine.now < at:
            engine.now += 1.0
            engine.scheduler.step()
        engine.ask(prompt, 1, session=session)
        engine.run()


def test_sessions_that_come_back_as_the_log_said_wait_less(fake_engine: Make) -> None:
    """Every visit finds its blocks on the disk; with the outlook they are in memory before it comes."""
    outlook = learned(visits(8))
    assert outlook.otherwise is not None and outlook.otherwise.chain is None
    assert outlook.otherwise.after == pytest.approx(48.0) and outlook.otherwise.until == pytest.approx(75.0)
    waits = {}
    for name, given in (("without", None), ("with", outlook)):
        engine = fake_engine(device=24, host=140, disk=800, outlook=given)
        drive(engine, visits(10, "ghijklmnopqrstuvwxyz"))
        engine.pool.check()
        waits[name] = engine.scheduler.counts
    assert waits["without"]["waits"] > 50
    assert waits["with"]["waits"] < waits["without"]["waits"] / 2
    used, fetched = (waits["with"][f"prefetch{kind}_foreseen"] for kind in ("_used", "ed"))
    assert used > fetched / 2


def test_a_wrong_guess_is_let_go_when_the_session_asks_something_else(fake_engine: Make) -> None:
    outlook = Outlook({}, Expected(None, 1.0, 10.0, 1000.0))
    engine = cooled(fake_engine, host=20, outlook=outlook)
    engine.tick = 0.0
    engine.ask([*A, 1], 1, session="s")
    engine.run()
    for number in range(8):
        engine.ask([700 + number] * 17, 1)
        engine.run()
    engine.now += 11
    engine.run()
    counts = engine.scheduler.counts
    assert counts["prefetched_foreseen"] == 4 and len(engine.scheduler.prefetch) == 1
    engine.ask(B, 1, session="s")
    engine.run()
    assert counts["prefetch_wasted_foreseen"] == 4 and not len(engine.scheduler.prefetch)
    host = engine.pool.lower[Tier.HOST]
    assert host.available() == host.capacity
    engine.pool.check()


def test_a_chain_of_another_state_is_fetched_and_one_that_nobody_knows_is_not(fake_engine: Make) -> None:
    engine = cooled(fake_engine, host=20)
    names = [engine.index.hash_of(node) for node in blocks(engine, A)]
    first = engine.index.hash_of(blocks(engine, B)[0])
    known = Expected(names[3], 0.9, 5.0, 50.0)
    outlook = Outlook({first: known}, Expected(None, 0.6, 900.0, 1000.0))
    assert outlook.after([first]) == known and outlook.after([]) == outlook.otherwise
    assert Outlook.from_json(outlook.to_json(), "x") == outlook
    engine.scheduler.foresight._outlook = outlook
    engine.tick = 0.0
    engine.ask(B, 1, session="s")
    engine.run()
    engine.now += 6
    engine.run()
    assert engine.pool.locate(blocks(engine, A)) == [Tier.HOST] * 4
    assert engine.scheduler.counts["prefetched_foreseen"] == 4
    engine.now += 60
    engine.scheduler.step()
    assert engine.scheduler.counts["prefetch_wasted_foreseen"] == 4, "nobody came in time"
