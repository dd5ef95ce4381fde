"""Alignment of variants: literals, gaps, outliers, and what holds for any input."""

from hypothesis import given
from hypothesis import strategies as st

from kvtool.prompts.alignment import Skeleton, align
from kvtool.prompts.slots import widened

PROMPT = (
    "You are an agent. Current time: {}. User: {}\nPlan: {}\nSession sess-{} in /tmp/run-{}/work.\n"
    "Answer briefly and never invent a price."
)


def gaps(variants: list[str]) -> list[list[str]]:
    skeleton = widened(align(variants), variants)
    return [[text[a:b] for a, b in skeleton.gaps(text) or []] for text in variants]


def test_slots_are_whole_values() -> None:
    rows = [
        ("2024-05-01 10:01:00", "Ann", "free", "a1", "a1"),
        ("2024-05-01 10:02:00", "Bob", "pro", "b2", "b2"),
        ("2024-05-01 11:05:00", "Carl Smith", "pro", "x9", "x9"),
    ]
    expected = [[t, name, plan, f"sess-{s}", f"/tmp/run-{d}/work"] for t, name, plan, s, d in rows]
    assert gaps([PROMPT.format(*row) for row in rows]) == expected


def test_a_block_that_comes_and_goes_is_one_gap() -> None:
    variants = ["Rules first.\nReminder: be kind.\nThen answer well.", "Rules first.\nThen answer well."]
    assert [["".join(found).strip() for found in gaps(variants)]] == [["Reminder: be kind.", ""]]


def test_common_words_inside_long_different_texts_are_no_anchors() -> None:
    tail = "\n\nAnswer from the memory above and say so when it does not hold the answer."
    memories = [
        "The user likes tea and lives in the old town with a cat that he found there in May.",
        "In April the order for a red bicycle was cancelled and the money was sent back to the card.",
        "She asked for a window seat, and the agent promised to look for one on the way back.",
    ]
    found = gaps([f"Memory:\n{memory}{tail}" for memory in memories])
    assert [len(one) for one in found] == [1, 1, 1]
    assert [one[0] for one in found] == memories


def test_a_text_that_shares_nothing_does_not_destroy_the_skeleton() -> None:
    variants = [
        "Agent one. It is 10:01 now. Be brief.",
        "Agent one. It is 10:02 now. Be brief.",
        "Translate menus!",
    ]
    skeleton = align(variants)
    assert skeleton.gaps(variants[2]) is None
    assert skeleton.stable() > 25


@given(st.lists(st.text("ab \n1:", max_size=30), min_size=1, max_size=6, unique=True))
def test_gaps_and_literals_make_up_every_variant_that_fits(variants: list[str]) -> None:
    skeleton = widened(align(variants), variants)
    assert skeleton.gaps(variants[0]) is not None or len(variants) > 1
    for text in variants:
        found = skeleton.gaps(text)
        if found is not None:
            pieces = [skeleton.literals[0]]
            for (start, end), literal in zip(found, skeleton.literals[1:], strict=True):
                pieces += [text[start:end], literal]
            assert "".join(pieces) == text


def test_gaps_refuse_what_does_not_fit() -> None:
    skeleton = Skeleton(("a ", " b"))
    assert skeleton.gaps("a x b") == [(2, 3)]
    assert skeleton.gaps("a b") is None  # the literals would have to overlap
    assert Skeleton(("same",)).gaps("same") == []
