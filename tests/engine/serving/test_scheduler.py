"""The scheduler against a fake model: answers never depend on the cache, and every token is computed once."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtool.blocks import reusable_blocks
from kvtool.cache.tiers import Tier
from kvtool.engine.serving.chunking import Limits

Make = Callable[..., Any]
Answer = Callable[[Sequence[int], int], list[int]]


def test_a_cold_request_computes_all_and_a_warm_one_only_its_tail(fake_engine: Make, answer: Answer) -> None:
    engine = fake_engine(device=32)
    prompt = list(range(100, 121))  # 21 tokens: five full blocks and one token
    cold = engine.ask(prompt, 3)
    engine.run()
    computed = engine.scheduler.counts["computed_tokens"]
    assert cold.request.generated == answer(prompt, 3)
    assert computed == 21 + len(cold.request.generated) - 1
    warm = engine.ask(prompt, 3)
    engine.run()
    assert warm.request.generated == cold.request.generated
    usage = warm.deltas[-1].usage
    assert (usage.prompt, usage.cached, usage.completion) == (21, 20, len(warm.request.generated))
    assert engine.scheduler.counts["computed_tokens"] - computed == 1 + len(warm.request.generated) - 1


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 16, 17])
def test_at_most_the_reusable_blocks_are_reused(fake_engine: Make, answer: Answer, length: int) -> None:
    engine = fake_engine(device=16)
    prompt = list(range(200, 200 + length))
    for expected in (0, reusable_blocks(length, 4) * 4):
        asked = engine.ask(prompt, 2)
        engine.run()
        assert asked.request.cached == expected
        assert asked.request.generated == answer(prompt, 2)


def test_an_answer_is_a_hit_for_the_next_turn(fake_engine: Make, answer: Answer) -> None:
    engine = fake_engine(device=32)
    prompt = list(range(100, 110))
    first = engine.ask(prompt, 12)
    engine.run()
    said = first.request.generated
    follow = [*prompt, *said, 300, 301]
    second = engine.ask(follow, 2)
    engine.run()
    # the last chosen token was never computed: blocks of all before it are there
    assert second.request.cached == (len(prompt) + len(said) - 1) // 4 * 4
    assert second.request.generated == answer(follow, 2)


def test_requests_that_arrive_together_compute_their_shared_prefix_once(
    fake_engine: Make, answer: Answer
) -> None:
    engine = fake_engine(device=64)
    shared = list(range(500, 540))
    prompts = [[*shared, 600 + number, 601, 602] for number in range(5)]
    asked = [engine.ask(prompt, 1) for prompt in prompts]
    engine.run()
    assert [a.request.generated for a in asked] == [answer(prompt, 1) for prompt in prompts]
    assert engine.scheduler.counts["computed_tokens"] == 40 + 5 * 3


def test_prefill_is_chunked_at_block_borders_and_mixed_with_decodes(fake_engine: Make) -> None:
    engine = fake_engine(device=64, limits=Limits(chunk_tokens=10, running=8))
    short = engine.ask([1, 2, 3], 9)
    engine.scheduler.step()
    engine.ask(list(range(100, 130)), 1)
    engine.run()
    assert engine.memory.steps[:4] == [[3], [1, 8], [1, 8], [1, 8]]
    assert len(short.request.generated) > 3


@pytest.mark.parametrize(("rest", "steps"), [(2, [16, 18]), (3, [16, 16, 3])])
def test_a_prompts_last_few_tokens_get_no_step_of_their_own(fake_engine: Make, rest, steps) -> None:
    engine = fake_engine(device=64, limits=Limits(chunk_tokens=16, running=8))
    engine.ask(list(range(100, 132 + rest)), 1)
    engine.run()
    assert engine.memory.steps == [[step] for step in steps]


def test_a_full_pool_puts_the_youngest_back_and_all_answers_are_right(
    fake_engine: Make, answer: Answer
) -> None:
    engine = fake_engine(device=8)
    prompts = [[10 * n, 10 * n + 1, 10 * n + 2] for n in range(30, 34)]
    asked = [engine.ask(prompt, 20) for prompt in prompts]
    engine.run()
    assert engine.scheduler.counts["preemptions"] > 0
    assert [a.request.generated for a in asked] == [answer(prompt, 20) for prompt in prompts]
    engine.pool.check()
    assert engine.pool.device.available() == 8


@pytest.mark.parametrize("salted", [False, True])
def test_a_tenant_that_sends_much_does_not_keep_others_waiting(fake_engine: Make, salted: bool) -> None:
    engine = fake_engine(device=64, limits=Limits(chunk_tokens=64, running=2))
    salts = [str(n) if salted else "" for n in range(6)]
    flood = [engine.ask([n, n, n], 9, tenant="flood", salt=salt) for n, salt in enumerate(salts, start=20)]
    quiet = engine.ask([1, 2, 3], 1, tenant="quiet")
    urgent = engine.ask([4, 5, 6], 1, tenant="flood", priority=-1)
    engine.scheduler.step()
    assert urgent.request.finish and quiet.request.finish, "the first by priority, the second by its tenant"
    assert not any(one.request.finish for one in flood)
    engine.run()
    assert all(one.request.finish for one in flood)


def test_cancelling_frees_the_lease_at_once(fake_engine: Make) -> None:
    engine = fake_engine(device=8)
    running, waiting = engine.ask(list(range(100, 120)), 13), engine.ask(list(range(300, 316)), 17)
    engine.scheduler.step()
    assert len(engine.scheduler.running) == 1 and len(engine.scheduler.waiting) == 1
    engine.scheduler.cancel(waiting.request)
    engine.scheduler.cancel(running.request)
    assert running.deltas[-1].finish == waiting.deltas[-1].finish == "cancelled"
    assert engine.pool.device.available() == 8 and not engine.scheduler.step()
    engine.scheduler.cancel(running.request)
    assert sum(delta.finish is not None for delta in running.deltas) == 1
    engine.pool.check()


def test_a_bad_copy_is_counted_and_computed(fake_engine: Make, answer: Answer) -> None:
    engine = fake_engine(device=6, host=8)
    a, b = list(range(100, 117)), list(range(300, 317))
    for prompt in (a, b):
        engine.ask(prompt, 1)
        engine.run()
    host = engine.pool.lower[Tier.HOST]
    third = engine.index.chain(engine_tokens(a), engine_root(engine))[2]  # the first is still on the device
    engine.memory.bad.add((Tier.HOST, host.slot_of(third)))
    again = engine.ask(a, 1)
    engine.run()
    assert again.request.cached == 8 and again.request.generated == answer(a, 1)
    assert engine.scheduler.counts["bad_blocks"] == 1
    assert engine.scheduler.counts["hit_tokens_host"] == 4
    engine.pool.check()


def engine_tokens(prompt: Sequence[int]) -> Any:
    import numpy as np

    return np.array(prompt, np.uint32)


def engine_root(engine: Any) -> Any:
    return engine.index.root_of(engine.index.known()[0])


def test_blocks_that_come_late_are_computed_and_their_copies_stay(fake_engine: Make, answer: Answer) -> None:
    engine = fake_engine(device=6, host=8)
    a, b = list(range(100, 117)), list(range(300, 317))
    for prompt in (a, b):
        engine.ask(prompt, 1)
        engine.run()
    engine.memory.arriving = 1
    again = engine.ask(a, 1)
    for _ in range(50):
        engine.scheduler.step()
    assert again.request.generated == answer(a, 1)
    assert again.request.cached == 8, "one block on the device, one that came"
    assert engine.scheduler.counts["late_blocks"] == 2 and engine.scheduler.counts["bad_blocks"] == 0
    nodes = engine.index.chain(engine_tokens(a), engine_root(engine))
    stay = [engine.pool.lower[Tier.HOST].slot_of(node) >= 0 for node in nodes[1:4]]
    assert stay == [False, True, True], "what came is on the device, what was late where it was"
    engine.pool.check()


def test_decodes_go_on_while_another_request_loads_and_a_second_one_waits_for_the_same_blocks(
    fake_engine: Make, answer: Answer
) -> None:
    engine = fake_engine(device=12, host=8)
    a, b = list(range(100, 117)), list(range(300, 340))
    for prompt in (a, b):
        engine.ask(prompt, 1)
        engine.run()
    engine.scheduler.rates.patience = lambda blocks: 1e9
    engine.memory.arriving = 0
    talker = engine.ask([1, 2, 3], 12)
    first, second = engine.ask(a, 1), engine.ask(a, 1)
    for _ in range(4):
        engine.scheduler.step()
    assert len(talker.request.generated) == 4
    assert first.request.loading and not second.request.loading
    assert second.request in engine.scheduler.waiting, "the same blocks are not read twice"
    engine.memory.arriving = 100
    engine.run()
    assert first.request.generated == second.request.generated == answer(a, 1)
    assert first.request.cached == second.request.cached == 16
    assert engine.scheduler.counts["hit_tokens_host"] == 12
    engine.pool.check()


def test_a_request_cancelled_while_it_loads_leaves_nothing_behind(fake_engine: Make, answer: Answer) -> None:
    engine = fake_engine(device=6, host=8)
    a, b = list(range(100, 117)), list(range(300, 317))
    for prompt in (a, b):
        engine.ask(prompt, 1)
        engine.run()
    engine.memory.arriving = 0
    loading = engine.ask(a, 1)
    engine.scheduler.step()
    assert loading.request.loading
    engine.scheduler.cancel(loading.request)
    assert loading.deltas[-1].finish == "cancelled" and engine.pool.device.available() == 6
    engine.pool.check()
    engine.memory.arriving = 100
    again = engine.ask(a, 1)
    engine.run()
    assert again.request.cached == 16 and again.request.generated == answer(a, 1)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.data(),
    device=st.integers(6, 24),
    host=st.integers(0, 8),
    disk=st.integers(0, 8),
    chunk=st.integers(4, 20),
    running=st.integers(1, 6),
)
def test_answers_never_depend_on_the_cache(
    fake_engine: Make, answer: Answer, data: Any, device: int, host: int, disk: int, chunk: int, running: int
) -> None:
    engine = fake_engine(device=device, host=host, disk=disk, limits=Limits(chunk, running))
    engine.memory.polls = data.draw(st.integers(0, 4))
    asked = []
    for _ in range(data.draw(st.integers(1, 12))):
        trunk = data.draw(st.integers(0, 2))
        prompt = [trunk] * data.draw(st.integers(1, 12)) + data.draw(st.lists(st.integers(0, 2), max_size=4))
        answered = engine.ask(prompt, data.draw(st.integers(1, min(12, device * 4 - len(prompt)))))
        asked.append((answered, data.draw(st.integers(0, 9)) == 0))
        for _ in range(data.draw(st.integers(0, 4))):
            engine.scheduler.step()
        if asked[-1][1]:
            engine.scheduler.cancel(answered.request)
        engine.pool.check()
    engine.run()
    for answered, cancelled in asked:
        request = answered.request
        expected = answer(request.prompt, request.max_tokens)
        if cancelled and request.finish == "cancelled":
            assert request.generated == expected[: len(request.generated)]
        else:
            assert request.generated == expected
            assert request.finish == ("stop" if expected[-1] == 7 else "length")
    engine.pool.check()
    assert engine.pool.device.available() == device
