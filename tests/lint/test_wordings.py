"""What a value is, by its own shape and the words beside it: one log for each wording."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kvtool.lint.check import find
from kvtool.lint.samples import AGENT, chat, history
from kvtool.requests import Request
from kvtool.tokens import PromptEncoder

Read = Callable[[Sequence[dict[str, Any]]], list[Request]]
RULES = f"<rules>{AGENT}</rules>\n{AGENT}"


@pytest.mark.parametrize(
    ("line", "values", "code"),
    [
        ("Scratch: {}", ("/var/tmp/coach-qslojo/", "/var/tmp/coach-ob3rl2/", "/tmp/coach-zzyx/"), "KV104"),
        ("thread_ts: {}", ("1772530000.271590", "1772530037.245531", "1772530074.000001"), "KV104"),
        ("The clock stood at {}.", ("1772530000.271590", "1772530037.245531", "1772530074.000001"), "KV101"),
        ("Room code: {}", ("JKXXFW", "HAQJUF", "QZTRBM", "WPLKDA"), "KV104"),
        ("Open editor tabs: {}", ("main.py, util.py", "cart.ts, shop.ts, index.html", "lib.rs"), "KV105"),
        ("<env>{}</env>", ("linux 6.8, node 22.3, zsh", "macOS 15.2, node 20, fish", "bsd 14, sh"), "KV105"),
        ("kubectl context: {}", ("prod-eu", "staging-us", "dev-local"), "KV105"),
        ("Your pupil today is {}.", ("Maya", "Jonas", "Li Wei"), "KV107"),
        ("Account: {}", ("ann.lee@example.com", "bob@shop.example", "eve@okafor.example"), "KV107"),
    ],
)  # fmt: skip
def test_values_that_a_session_keeps(
    line: str, values: Sequence[str], code: str, read: Read, encoder: PromptEncoder
) -> None:
    rows = [
        chat(f"{line.format(value)}\n{RULES}", history(turn), session=str(number), time=100 * number + turn)
        for number, value in enumerate(values)
        for turn in (1, 2, 3)
    ]
    (found,) = find(read(rows), encoder, 8)
    start = line.index("{")
    assert (found.code, found.location.start, found.location.end) == (code, start, start + len(values[0]))


def test_a_side_question_leaves_the_history_as_it_is(read: Read, encoder: PromptEncoder) -> None:
    rows = []
    for number in range(4):
        for turn in (1, 2, 3, 4):
            texts = history(turn)
            side = [*texts[:-1], "What could go wrong here?"]
            for at, asked in enumerate((side, texts)):
                rows.append(chat(RULES, asked, session=str(number), time=100 * number + 10 * turn + at))
    assert [one for one in find(read(rows), encoder, 8) if one.severity != "info"] == []
