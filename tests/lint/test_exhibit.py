"""Findings shown where they were found, and what of a prompt may be shown at all."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from kvtool.lint.check import examine
from kvtool.lint.corpus import Corpus
from kvtool.lint.exhibit import AFTER, BEFORE, LINES, WIDTH, exhibits
from kvtool.lint.private import Private, cut
from kvtool.lint.rules import RULES
from kvtool.lint.samples import AGENT, TOOLS, tool
from kvtool.page import Exhibit
from kvtool.tokens import PromptEncoder
from tests.lint.conftest import Read

Rows = list[dict[str, Any]]
USERS = ("Ann Lee", "Bo Kim", "Cleo Fox", "Dag Moe", "Eva Ruiz", "Finn Wu")


def rows(head: str = "", tools: Sequence[dict[str, Any]] = TOOLS, shuffle: bool = False) -> Rows:
    """Six conversations of two turns; `head` may hold {clock} and {user}."""
    made = []
    for number in range(12):
        session, turn = number % 6, number // 6
        clock = f"2026-01-05 10:{number:02d}:{(7 * number) % 60:02d}"
        system = head.format(clock=clock, user=USERS[session])
        order = list(tools)[:: -1 if shuffle and number % 3 == 1 else 1]
        order = order[number % 2 * shuffle :] + order[: number % 2 * shuffle]
        talk = [{"role": "user", "content": f"My code is QX{session}7F, where is it?"}]
        if turn:
            talk += [
                {"role": "assistant", "content": f"It is in Oslo {session}."},
                {"role": "user", "content": f"Thank you, from {session}!"},
            ]
        made.append(
            {
                "session_id": f"s{session}",
                "created": 1767600000 + 60 * number,
                "messages": [{"role": "system", "content": system + AGENT * 2}, *talk],
                "tools": order,
            }
        )
    return made


def shown(read: Read, encoder: PromptEncoder, log: Rows, show_values: bool = False) -> dict[str, Exhibit]:
    priced = examine(read(log), encoder, 32)
    made = exhibits(priced, show_values)
    assert [one.index for one in made] == list(range(len(priced)))
    return {one.finding.code: exhibit for one, exhibit in zip(priced, made, strict=True)}


def text_of(exhibit: Exhibit) -> str:
    return "".join(piece.text for piece in exhibit.pieces if piece.kind != "gap")


def test_a_slot_is_highlighted_in_its_prompt_and_masked(read: Read, encoder: PromptEncoder) -> None:
    log = rows("It is {clock} for {user}.\n")
    clock = shown(read, encoder, log)["KV101"]
    kinds = [(piece.kind, piece.text) for piece in clock.pieces]
    assert kinds[:5] == [
        ("text", "It is "),
        ("slot", "0000-00-00 00:00:00"),
        ("text", " for "),
        ("value", "Xxx Xxx"),
        ("text", ".\n" + (AGENT * 2)[: AFTER - len(" for Ann Lee.\n")]),
    ]
    assert kinds[5] == ("gap", f"{2 * len(AGENT) - AFTER + len(' for Ann Lee.') + 1:,} characters")
    assert clock.samples == ["0000-00-00 00:00:00"]
    assert clock.role == "system" and clock.path == "messages[0].content"


def test_values_are_shown_where_they_are_asked_for(read: Read, encoder: PromptEncoder) -> None:
    clock = shown(read, encoder, rows("It is {clock} for {user}.\n"), show_values=True)["KV101"]
    assert clock.pieces[1].text == "2026-01-05 10:00:00" and clock.pieces[3].text == "Ann Lee"
    assert clock.samples[:2] == ["2026-01-05 10:00:00", "2026-01-05 10:01:07"]
    assert any("QX07F" in line.text for line in clock.diff)


def test_the_diff_is_what_normalize_does(read: Read, encoder: PromptEncoder) -> None:
    clock = shown(read, encoder, rows("The time is {clock}.\n"))["KV101"]
    removed = [line.text for line in clock.diff if line.mark == "-"]
    added = [line.text for line in clock.diff if line.mark == "+"]
    assert removed[0] == "The time is 0000-00-00 00:00:00."
    assert added[0] == "The time is (see the end of the conversation)."
    assert any(line.startswith("The time is 0000-00-00 00:00:00.") for line in added[1:])
    assert clock.diff_note == "Row 1 as the model sees it, before and after kvtool normalize."
    assert not any("QX07F" in line.text for line in clock.diff)


def test_the_place_in_the_prompt_is_counted_in_its_tokens(read: Read, encoder: PromptEncoder) -> None:
    log = rows(AGENT * 2 + "\nIt is {clock}.\n")
    clock = shown(read, encoder, log)["KV101"]
    requests = read(log)
    rendered = encoder.render(requests[0]).text
    assert clock.prompt_tokens == len(encoder.tokenizer.encode(rendered))
    assert clock.before == len(encoder.tokenizer.encode(rendered[: rendered.index("2026-01-05")]))
    assert clock.pieces[0].kind == "gap"
    first = text_of(clock)
    assert first.index("0000-00-00") == BEFORE


def test_tools_are_named_in_their_order_and_sorted_by_the_fix(read: Read, encoder: PromptEncoder) -> None:
    order = shown(read, encoder, rows(shuffle=True))["KV201"]
    (slot,) = [piece.text for piece in order.pieces if piece.kind == "slot"]
    names = [one["function"]["name"] for one in TOOLS]
    assert sorted(slot.split(", ")) == sorted(names)
    assert all(set(sample.split(", ")) == set(names) for sample in order.samples)  # names are no values
    added = [line.text for line in order.diff if line.mark == "+"]
    assert added and all("name" in text for text in added)


def test_a_diff_is_no_longer_than_a_screen(read: Read, encoder: PromptEncoder) -> None:
    many = [tool(f"tool_{number:02d}", "A tool. " * 60) for number in range(40)]
    order = shown(read, encoder, rows(tools=many, shuffle=True))["KV201"]
    assert len(order.diff) == LINES + 1
    assert order.diff[-1].mark == "~" and order.diff[-1].text.endswith("more changed lines")
    assert all(len(line.text) <= WIDTH + 2 for line in order.diff)


def test_only_what_others_send_too_is_shown(read: Read, encoder: PromptEncoder) -> None:
    log = rows("It is {clock} for {user}.\n")
    log[0]["tools"] = [{"type": "function", "function": {"name": "find", "description": "By Zoe only."}}]
    private = Private(Corpus(read(log), encoder, 32), show_values=False)
    masked = private.request(1)
    assert masked.messages is not None and masked.tools is not None
    assert masked.messages[0]["content"] == "It is 0000-00-00 00:00:00 for Xx Xxx.\n" + AGENT * 2
    assert masked.messages[1]["content"] == "Xx xxxx xx XX00X, xxxxx xx xx?"
    assert masked.tools == list(TOOLS)
    everything = json.dumps([private.request(index).messages for index in range(12)])
    for own in ("Ann", "Kim", "QX17F", "Oslo", "2026", "Thank you"):
        assert own not in everything
    opened = Private(private.corpus, show_values=True)
    assert opened.request(1) is private.corpus.requests[1]


def test_instructions_that_do_not_fit_the_others_are_masked_whole(read: Read, encoder: PromptEncoder) -> None:
    log = rows("It is {clock}.\n")
    log[5]["messages"][0]["content"] = AGENT.replace("airline", "railway of Zoe") + " Ask Zoe Smith first."
    private = Private(Corpus(read(log), encoder, 32), show_values=False)
    texts = [str((private.request(index).messages or [])[0]["content"]) for index in range(12)]
    assert not any("Zoe" in text or "Smith" in text for text in texts)
    assert any("You are the assistant" in text for text in texts)


def test_runs_of_a_text_are_cut_at_its_spans() -> None:
    assert cut("abcdef", [(1, 3), (2, 4), (6, 6)]) == [("a", False), ("bc", True), ("d", True), ("ef", False)]
    assert cut("abc", []) == [("abc", False)] and cut("", [(0, 0)]) == []


@pytest.mark.parametrize("module", RULES.names())
def test_every_rules_samples_can_be_shown(module: str, read: Read, encoder: PromptEncoder) -> None:
    """A slot or an outline, a place inside the prompt, the rule's words, a diff only of what an edit does."""
    rule = RULES.load(module)
    for sample in rule.invalid:
        priced = examine(read(sample.rows), encoder, 8)
        assert priced
        for one, exhibit in zip(priced, exhibits(priced, False), strict=True):
            assert [piece for piece in exhibit.pieces if piece.kind == "slot"]
            assert exhibit.before is None or 0 <= exhibit.before <= exhibit.prompt_tokens
            assert exhibit.why and exhibit.instead and exhibit.diff_note
            assert bool(exhibit.diff) <= bool(one.edits)
            assert all(len(line.text) <= WIDTH + 2 for line in exhibit.diff)
