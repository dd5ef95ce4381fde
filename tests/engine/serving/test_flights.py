"""Steps launched before the tokens of the one before are known: same answers, no slot with two writers."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtool.engine.compute.edits import Edits
from kvtool.engine.compute.sampler import GREEDY
from kvtool.engine.serving.choosing import Rules
from kvtool.engine.serving.chunking import Limits

Make = Callable[..., Any]
Answer = Callable[[Sequence[int], int], list[int]]
ON_DEVICE = Rules(GREEDY)
END = 7


def lengths(answer: Answer, prompts: Sequence[list[int]], most: int) -> dict[bool, list[int]]:
    """A prompt whose answer ends with a token before `most`, and one whose does not."""
    found: dict[bool, list[int]] = {}
    for prompt in prompts:
        found.setdefault(answer(prompt, most)[-1] == END, prompt)
    return found


def test_decodes_are_launched_before_the_token_that_they_follow_is_known(
    fake_engine: Make, answer: Answer
) -> None:
    engine = fake_engine(device=32, ahead=True)
    by_length = lengths(answer, [[n, n] for n in range(100, 140)], 9)[False]
    asked = engine.ask(by_length, 9, choose=ON_DEVICE)
    engine.run()
    assert asked.request.generated == answer(by_length, 9)
    stream = engine.memory.stream
    assert (stream.launched, stream.overlapped) == (9, 8), "each but the last was followed first"
    assert engine.scheduler.counts["dropped_tokens"] == 0, "the length is known beforehand"
    assert len(asked.deltas) >= 1 and engine.scheduler.counts["generated_tokens"] == 9


def test_an_answer_that_ends_with_a_token_costs_one_more(fake_engine: Make, answer: Answer) -> None:
    by_token = lengths(answer, [[n, n] for n in range(100, 140)], 30)[True]
    counts = []
    for ahead in (False, True):
        engine = fake_engine(device=32, ahead=ahead)
        asked = engine.ask(by_token, 30, choose=ON_DEVICE if ahead else None)
        engine.run()
        assert asked.request.generated == answer(by_token, 30) and asked.request.finish == "stop"
        assert engine.pool.device.available() == 32
        engine.pool.check()
        counts.append(engine.scheduler.counts)
    assert counts[1]["dropped_tokens"] == 1 and counts[0]["dropped_tokens"] == 0
    for name in ("computed_tokens", "steps"):
        assert counts[1][name] == counts[0][name] + 1


def test_bias_penalties_and_logprobs_wait_no_longer_than_a_plain_choice(
    fake_engine: Make, answer: Answer
) -> None:
    engine = fake_engine(device=32, ahead=True)
    prompt = lengths(answer, [[n, n] for n in range(100, 140)], 9)[False]
    rules = Rules(GREEDY, Edits({3: 1.0}, frequency_penalty=0.5, presence_penalty=0.1))
    asked = engine.ask(prompt, 9, choose=rules)
    asked.request.top_logprobs = 2
    engine.run()
    assert engine.memory.stream.overlapped == 8
    known = answer(prompt, 9)
    # The token in the air is named by its place; what came before it is known on the host.
    assert [list(ask.generated) for ask in engine.memory.stream.asks] == [
        known[: max(n - 1, 0)] for n in range(9)
    ]
    assert [ask.follows for ask in engine.memory.stream.asks] == [None] + [0] * 8
    assert [ask.index for ask in engine.memory.stream.asks] == list(range(9))


def test_a_choice_that_is_made_on_the_host_is_waited_for(fake_engine: Make, answer: Answer) -> None:
    engine = fake_engine(device=32, ahead=True)
    prompt = lengths(answer, [[n, n] for n in range(100, 140)], 9)[False]
    asked = engine.ask(prompt, 9, choose=lambda logits, _: int(logits))
    engine.run()
    assert asked.request.generated == answer(prompt, 9)
    assert engine.memory.stream.overlapped == 0


@pytest.mark.parametrize("way", ["cancelled", "failed"])
def test_a_lease_is_not_released_while_a_step_may_write_to_it(fake_engine: Make, way: str) -> None:
    engine = fake_engine(device=8, ahead=True)
    asked = engine.ask(list(range(100, 110)), 13, choose=ON_DEVICE)
    engine.scheduler.step()
    assert engine.memory.stream.flying and asked.request.pending == 1
    if way == "failed":  # nobody waits for a device that is lost
        engine.scheduler.fail_all()
        assert engine.pool.device.available() == 8
    else:
        engine.scheduler.cancel(asked.request)
        assert engine.pool.device.available() == 8 - 3
        assert engine.scheduler.step() and not engine.scheduler.step()
    assert asked.request.finish == way and asked.request.generated == []
    assert engine.pool.device.available() == 8
    engine.pool.check()


def test_whoever_is_put_back_keeps_the_token_that_was_in_the_air(fake_engine: Make, answer: Answer) -> None:
    engine = fake_engine(device=8, ahead=True)
    prompts = [[10 * n, 10 * n + 1, 10 * n + 2] for n in range(30, 34)]
    asked = [engine.ask(prompt, 20, choose=ON_DEVICE) for prompt in prompts]
    engine.run()
    assert engine.scheduler.counts["preemptions"] > 0
    assert [one.request.generated for one in asked] == [answer(prompt, 20) for prompt in prompts]
    assert engine.scheduler.counts["generated_tokens"] == sum(len(one.request.generated) for one in asked)
    engine.pool.check()


def test_prompts_are_hits_as_soon_as_they_are_launched(fake_engine: Make, answer: Answer) -> None:
    engine = fake_engine(device=64, ahead=True)
    shared = list(range(500, 512))
    prompts = [[*shared, 600 + number] for number in range(4)]
    asked = [engine.ask(prompt, 1, choose=ON_DEVICE) for prompt in prompts]
    engine.run()
    assert [one.request.generated for one in asked] == [answer(prompt, 1) for prompt in prompts]
    assert engine.memory.steps == [[13], [1, 1, 1]], "the second step reads what the first was still to fill"
    assert engine.memory.stream.overlapped == 1


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.data(),
    device=st.integers(6, 24),
    host=st.integers(0, 8),
    disk=st.integers(0, 8),
    chunk=st.integers(4, 20),
    running=st.integers(1, 6),
)
def test_answers_are_those_of_a_device_that_is_waited_for(
    fake_engine: Make, answer: Answer, data: Any, device: int, host: int, disk: int, chunk: int, running: int
) -> None:
    engine = fake_engine(device=device, host=host, disk=disk, limits=Limits(chunk, running), ahead=True)
    engine.memory.polls = data.draw(st.integers(0, 4))
    asked = []
    for number in range(data.draw(st.integers(1, 12))):
        trunk = data.draw(st.integers(0, 2))
        prompt = [trunk] * data.draw(st.integers(1, 12)) + data.draw(st.lists(st.integers(0, 2), max_size=4))
        choose = ON_DEVICE if data.draw(st.integers(0, 4)) else lambda logits, _: int(logits)
        most = data.draw(st.integers(1, min(12, device * 4 - len(prompt))))
        answered = engine.ask(prompt, most, session=f"s{number % 3}", choose=choose)
        cancelled = data.draw(st.integers(0, 5)) == 0
        asked.append((answered, cancelled))
        for _ in range(data.draw(st.integers(0, 4))):
            engine.scheduler.step()
        if cancelled:
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
            assert request.finish == ("stop" if expected[-1] == END else "length")
        assert sum(delta.finish is not None for delta in answered.deltas) == 1
        assert answered.deltas[-1].usage.completion == len(request.generated)
    engine.pool.check()
    assert engine.pool.device.available() == device and not engine.memory.stream.flying
