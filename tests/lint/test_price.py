"""Prices: a replay that encodes only what a repair changes is the replay of the whole repaired log."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kvtool.lint.check import find
from kvtool.lint.corpus import Corpus
from kvtool.lint.naming import candidates
from kvtool.lint.price import Pricer, replayed
from kvtool.lint.repair import Repair
from kvtool.requests import Request
from kvtool.tokens import PromptEncoder

Read = Callable[[Sequence[dict[str, Any]]], list[Request]]
LETTERS = (
    "Dear all, the soup was cold on both evenings and nobody came when we rang. Please tell the cook.",
    "What a lovely garden you have! My mother sat there every day with her books until the sun went down.",
    "Could you send me a bill for room twelve, with the tax on a line of its own? My office asks for it.",
    "We shall come again in June with four children and a dog, and need two rooms that have a door between.",
    "The old piano in the hall is out of tune. I know someone who would mend it for a weekend with you.",
    "Somebody left a blue umbrella in the taxi that your porter called. Does he remember its number?",
)
SAMPLE = Path(__file__).resolve().parent.parent.parent / "samples/airline-chat.jsonl"


@pytest.mark.parametrize("wanted", [("KV101",), ("KV201",), ("KV401",), ("KV101", "KV201", "KV401")])
def test_only_what_changed_is_encoded_and_the_rates_are_exact(
    wanted: tuple[str, ...], read: Read, encoder: PromptEncoder
) -> None:
    rows = [json.loads(line) for line in SAMPLE.read_text().splitlines()[:60]]
    for row in rows[1::3]:
        row["messages"][1]["content"] += "\n\n[NOTE: plan mode is on; do not book anything yet.]"
    requests = read(rows)
    corpus = Corpus(requests, encoder, 32)
    found = [one for one in candidates(corpus) if one.code in wanted]
    assert {one.code for one in found} == set(wanted)
    repair = Repair()
    for one in found:
        repair.merge(one.repair)
    pricer = Pricer(corpus, 32, [one.repair for one in found])
    rates = pricer.repaired(range(len(found)), like=pricer.repaired([0])).rates
    whole = [repair.apply(index, request) for index, request in enumerate(requests)]
    full = replayed(whole, corpus.order, encoder, 32)
    assert (rates.saved_tokens, rates.prompt_tokens) == (full.saved_tokens, full.prompt_tokens)
    assert rates.saved.tolist() == full.saved.tolist()
    unrepaired = (pricer.base.rates.saved_tokens, pricer.base.rates.prompt_tokens)
    assert (rates.saved_tokens, rates.prompt_tokens) != unrepaired


def test_a_task_before_its_instructions_is_priced_as_turned_round(read: Read, encoder: PromptEncoder) -> None:
    rules = "Sort the letter into complaint, praise, question or order, and say why in one sentence. " * 6
    before, after = (
        read([{"messages": [{"role": "user", "content": form.format(letter, rules)}]} for letter in LETTERS])
        for form in ("{0}\n\n{1}", "{1}\n\n{0}")
    )
    found = find(before, encoder, 32)
    truth = replayed(after, range(len(after)), encoder, 32).tokens
    assert [one.code for one in found] == ["KV302"]
    assert found[0].hit_rate_if_fixed == pytest.approx(truth, abs=0.01)
