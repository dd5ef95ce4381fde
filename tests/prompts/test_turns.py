"""Conversations and steps: what continues what, with and without session ids, and what it changed."""

from typing import Any

from kvtool.prompts.conversations import number_conversations
from kvtool.prompts.fields import Prompt, read_prompt
from kvtool.prompts.turns import Turns
from kvtool.requests import Request, Source
from kvtool.templates import ChatMLTools

U = [f"Question number {n} about the bag that was lost on Monday?" for n in range(6)]
A = [f"Answer number {n}, which is long enough that no other one will be like it." for n in range(6)]
SYSTEM = {"role": "system", "content": "You answer questions."}


def prompt(*texts: str, session: str | None = None) -> Prompt:
    """System, then user and assistant in turn; texts of the model start with A."""
    roles = [{"role": "assistant" if text in A else "user", "content": text} for text in texts]
    messages: list[dict[str, Any]] = [SYSTEM, *roles]
    request = Request("r", Source("f", 1), session=session, messages=messages)
    return read_prompt(request, ChatMLTools().render(messages, None))


def numbers(*prompts: Prompt) -> list[int]:
    return number_conversations(prompts, range(len(prompts)))


def changes(before: Prompt, after: Prompt) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    (step,) = Turns([before, after]).steps([0, 1], [0, 0], [0, 0])
    return [(one.kind, one.old, one.new) for one in step.changes]


def test_histories_chain_without_session_ids() -> None:
    first, second = prompt(U[0]), prompt(U[1])
    assert numbers(first, second, prompt(U[0], A[0], U[2]), prompt(U[1], A[1], U[3])) == [0, 1, 0, 1]


def test_session_ids_win_over_texts() -> None:
    assert numbers(prompt(U[0], session="a"), prompt(U[0], A[0], U[1], session="b")) == [0, 1]


def test_a_window_that_slid_is_still_the_same_conversation() -> None:
    long = prompt(U[0], A[0], U[1], A[1], U[2])
    assert numbers(long, prompt(A[1], U[2], A[2], U[3]), prompt(U[5])) == [0, 0, 1]
    assert numbers(long, prompt(A[0], U[1], A[1], U[2], A[2], U[3])) == [0, 0]


def test_a_history_read_back_with_other_white_space_is_the_same_conversation() -> None:
    lines, again = "Good day.\nMy bag is lost.", "Good day.\r\nMy bag is lost. "
    other = "Good day.\nMy hat is lost."
    assert numbers(prompt(lines), prompt(other), prompt(again, A[0], "And?")) == [0, 1, 0]


def test_after_a_compaction_the_message_asked_last_tells_the_conversation() -> None:
    first, second = prompt(U[0], A[0], U[1]), prompt(U[2], A[2], U[3])
    assert numbers(first, second, prompt("In short: it is lost.", U[1], A[1], "Oh")) == [0, 1, 0]
    twice = [prompt(U[0], A[0], U[1]), prompt(U[2], A[2], U[1])]  # both ended with it: no evidence
    assert numbers(*twice, prompt("In short: it is lost.", U[1], A[1], "Oh")) == [0, 1, 2]


def test_a_note_put_into_the_first_message_does_not_end_the_conversation() -> None:
    noted = U[0] + "\n\n[plan mode is on]"
    assert numbers(prompt(U[0]), prompt(U[1]), prompt(noted, A[0], U[2])) == [0, 1, 0]
    assert numbers(prompt(U[0]), prompt("Another matter: " + A[3]), prompt(noted)) == [0, 1, 2]


def test_a_chat_that_starts_over_broke_nothing() -> None:
    steps = Turns([prompt(U[0], A[0], U[1]), prompt(U[0]), prompt(U[0], A[1], U[2])]).steps(
        [0, 1, 2], [0, 0, 0], [0, 0, 0]
    )
    assert [(step.previous, step.current, step.changes) for step in steps] == [(1, 2, ())]


def test_a_greeting_that_repeats_does_not_join_conversations() -> None:
    assert numbers(prompt(U[0], A[0], U[1]), prompt("Something else entirely, please help", A[0], U[3])) == [
        0,
        1,
    ]


def test_a_clean_step_changes_nothing_and_knows_its_tail() -> None:
    (step,) = Turns([prompt(U[0]), prompt(U[0], A[0], U[1])]).steps([0, 1], [0, 0], [0, 0])
    assert (step.changes, step.tail) == ((), 2)


def test_replaced_removed_added() -> None:
    before = prompt(U[0], A[0], U[1])
    assert changes(before, prompt(U[0] + "!", A[0], U[1], A[1], U[2])) == [("replaced", (0,), (0,))]
    assert changes(before, prompt(U[1], A[1], U[2])) == [("removed", (0, 1), (0,))]
    assert changes(before, prompt(U[0], U[4], A[0], U[1], A[1], U[2])) == [("added", (1,), (1,))]


def test_another_last_message_is_a_branch_not_a_change() -> None:
    assert changes(prompt(U[0], A[0], U[1]), prompt(U[0], A[0], U[2])) == []


def test_the_request_that_shares_most_is_continued() -> None:
    prompts = [prompt(U[0], A[0], U[1]), prompt(U[0], A[0], U[2]), prompt(U[0], A[0], U[1], A[1], U[3])]
    steps = Turns(prompts).steps([0, 1, 2], [0, 0, 0], [0, 0, 0])
    assert [(step.previous, step.current) for step in steps] == [(0, 1), (0, 2)]


def test_nothing_in_common_is_no_step() -> None:
    assert Turns([prompt(U[0]), prompt(U[1])]).steps([0, 1], [0, 0], [0, 0]) == []


def test_line_ends_that_come_and_go_do_not_hide_the_latest_request() -> None:
    plain, odd = "Good day.\nWhere?", "Good day.\r\nWhere?"
    requests = [prompt(odd), prompt(plain, A[0], U[1]), prompt(odd, A[0] + " ", U[1] + " ", A[2], U[3])]
    steps = Turns(requests).steps([0, 1, 2], [0, 0, 0], [0, 0, 0])
    assert [(step.previous, step.current) for step in steps] == [(0, 1), (1, 2)]


def test_a_window_over_messages_that_repeat_is_a_shift() -> None:
    before, after = prompt(U[0], A[0], "ok", A[1], "ok", A[0]), prompt("ok", A[1], "ok", A[0], U[1])
    assert changes(before, after) == [("removed", (0, 1), (0,))]


def test_a_window_keeps_a_pinned_first_message() -> None:
    before, after = prompt(U[0], A[0], U[1], A[1], U[2]), prompt(U[0], A[1], U[2], A[2], U[3])
    assert changes(before, after) == [("removed", (1, 2), (1,))]
